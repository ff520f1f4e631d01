"""The presets: named points of the knob space, each with its source and what its authors' code does differently.

All have KL off. Where a paper leaves a value open, the `Objective` field's default is used (std with divisor n - 1,
1e-6 added to it).
"""

from __future__ import annotations

from typing import NamedTuple

from algorithms.objective import Objective, PolicyGradient, PpoClip
from algorithms.overrides import nearest, with_overrides


class Preset(NamedTuple):
    objective: Objective
    description: str


_PRESETS = {
    "reinforce": Preset(
        Objective(baseline="batch_mean", rule=PolicyGradient(), aggregation="seq_mean_token_sum"),
        "REINFORCE (Williams 1992) with the batch's mean reward as baseline: the plain policy gradient of the expected "
        "reward. It has no importance ratio, so its gradient is that of the rollout policy only in the first optimiser "
        "step after a rollout.",
    ),
    "rloo": Preset(
        Objective(baseline="leave_one_out", ratio="token", rule=PpoClip(), aggregation="seq_mean_token_sum"),
        "RLOO (Ahmadian et al. 2402.14740): the baseline is the mean reward of the prompt's other completions. The "
        "paper's gradient is REINFORCE's on fresh samples, which is also the gradient here in the first step after a "
        "rollout; later steps are corrected by PPO's token ratio and clip (as in OpenRLHF). TRL clips the product "
        "ratio of the whole completion instead (ratio=sequence_product with aggregation=seq_mean_token_mean). The "
        "paper's KL penalty in the reward is off.",
    ),
    "grpo": Preset(
        Objective(
            baseline="group_mean",
            scale="group_std",
            ratio="token",
            rule=PpoClip(),
            aggregation="seq_mean_token_mean",
        ),
        "GRPO (Shao et al. 2402.03300, eq. 3): rewards standardised within the group, token ratio with PPO clip, mean "
        "over completions of the mean over tokens. The paper's KL term in the loss (k3, beta 0.04) is off. TRL and "
        "verl default to aggregation=token_mean under this name, and verl adds dual_clip=3.",
    ),
    "dr_grpo": Preset(
        Objective(baseline="group_mean", ratio="token", rule=PpoClip(), aggregation="constant_length"),
        "Dr. GRPO (Liu et al. 2503.20783): GRPO without the division by the group's std and by the completion's "
        "length; token losses are summed and divided by max_completion_tokens. The authors' code (oat) does the same; "
        "OpenRLHF's dr_grpo drops only the std.",
    ),
    "dapo_loss": Preset(
        Objective(
            baseline="group_mean",
            scale="group_std",
            ratio="token",
            rule=PpoClip(clip_high=0.28),
            aggregation="token_mean",
        ),
        "The loss of DAPO (Yu et al. 2503.14476, eq. 8): GRPO with a higher upper clip bound (0.28) and the mean over "
        "tokens, without DAPO's dynamic sampling and overlong punishment. The equation divides by the tokens of the "
        "prompt's group, the authors' code (verl) by those of the batch, as here; their script adds dual_clip=10.",
    ),
    "lite_ppo": Preset(
        Objective(
            baseline="group_mean",
            scale="batch_std",
            ratio="token",
            rule=PpoClip(),
            aggregation="token_mean",
        ),
        "LitePPO (Liu et al. 2508.08221): PPO clip without a critic; rewards minus the group's mean, divided by the "
        "std of the batch's raw rewards; mean over tokens.",
    ),
}


def presets() -> tuple[str, ...]:
    """The names of all presets, from the plainest to the latest."""
    return tuple(_PRESETS)


def preset(name: str, /, **overrides: object) -> Objective:
    """The named objective, with dotted knobs changed: `preset("grpo", **{"rule.clip_high": 0.28})`.

    Raises ValueError for an unknown preset and, naming all of them, for overrides that `with_overrides` refuses.
    """
    return with_overrides(_find(name).objective, overrides)


def describe(name: str) -> str:
    """What the preset is, where it comes from and how the authors' code differs. Raises ValueError if unknown."""
    return _find(name).description


def _find(name: str) -> Preset:
    if name not in _PRESETS:
        raise ValueError(f"unknown algorithm {name!r}: {nearest(name, presets())}")
    return _PRESETS[name]
