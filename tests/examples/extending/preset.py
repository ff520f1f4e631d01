"""A preset of one's own: put the file beside the sweep file and name it there under `plugins: [preset]`.

Then `algorithm: lab_grpo` stands for this objective, and `bench show`, `bench diff` and `bench ls algorithms` know it.
"""

from __future__ import annotations

from algorithms import Objective, Preset
from algorithms.rules.ppo_clip import PpoClip

# Any name at the top level will do. What is not set here has the default that `bench ls knobs` tells.
LAB_GRPO = Preset(
    name="lab_grpo",
    objective=Objective(
        baseline="group_mean",
        ratio="token",
        rule=PpoClip(clip_high=0.28),
        aggregation="token_mean",
    ),
    summary="GRPO without the division by the std, with a higher upper clip",
    source="Dr. GRPO, Liu et al. 2503.20783, for the std; DAPO, Yu et al. 2503.14476, for the clip",
    # The rest is optional: what a reader should know, and settings outside the objective that go with it. `bench show`
    # tells these companions; they are not applied, so set them under `base:` of the sweep file.
    about="What our lab has run since May.",
    traps="clip_high acts only from the second optimiser step after a rollout on.",
    companions={"train.updates_per_rollout": 4},
)
