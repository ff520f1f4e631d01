"""A custom preset: put the file next to the sweep file and name it there under `plugins: [preset]`.

Then `algorithm: lab_grpo` stands for this objective, and `bench show`, `bench diff` and `bench ls algorithms` know it.
"""

from __future__ import annotations

from algorithms import Objective, Preset
from algorithms.rules.ppo_clip import PpoClip

# Use any top-level name. Knobs that are not set here have the defaults that `bench ls knobs` lists.
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
    # The rest is optional: notes for readers, and recommended settings outside the objective. `bench show` prints these
    # companions but never applies them, so set them under `base:` of the sweep file.
    about="What our lab has run since May.",
    traps="clip_high acts only from the second optimiser step of a rollout on.",
    companions={"train.updates_per_rollout": 4},
)
