"""The objective: one point in the knob space of policy-gradient post-training.

A knob is one dotted field (`baseline`, `rule.clip_high`). GRPO, Dr. GRPO, DAPO, ... are named points of this space
(`algorithms.catalogue`); an ablation moves one knob and keeps the others. In symbols, with r the importance ratio:

    A    = (R - baseline) / scale                 advantages, one for each completion
    loss = aggregation over tokens of rule(A, r)  minimised

Not every knob exists at every point: a clip range belongs to the clipping rule, an epsilon to a standard deviation.
`GOVERNORS` names, for every knob that can be absent, the selector that decides; an absent knob keeps its default in
the model and does not appear in `active_knobs`, so that two objectives are the same when their active knobs are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

KnobValue = str | float | int | None

Baseline = Literal["none", "batch_mean", "group_mean", "leave_one_out", "length_weighted"]
Scale = Literal["none", "group_std", "batch_std", "whiten_tokens"]
Ratio = Literal["none", "token", "sequence_mean", "sequence_product"]
Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant_length"]

GROUP_BASELINES: tuple[Baseline, ...] = ("group_mean", "leave_one_out", "length_weighted")


class Knobs(BaseModel):
    """Frozen and strict: an unknown knob is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class PolicyGradient(Knobs):
    """-A log pi: the score-function gradient (Williams 1992). It has no importance ratio."""

    type: Literal["policy_gradient"] = "policy_gradient"


class Weighted(Knobs):
    """-A r: the importance-weighted gradient without any bound, PPO's L^CPI (1707.06347, eq. 6)."""

    type: Literal["weighted"] = "weighted"


class PpoClip(Knobs):
    """-min(A r, A clip(r, 1 - clip_low, 1 + clip_high)): PPO's L^CLIP (1707.06347, eq. 7)."""

    type: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(
        default=0.2, gt=0, description="r is clipped from below at 1 - clip_low; default: PPO, section 6.1"
    )
    clip_high: float = Field(
        default=0.2,
        gt=0,
        description="r is clipped from above at 1 + clip_high; default: PPO, section 6.1 (DAPO: 0.28)",
    )
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        description="bound c on the loss where A < 0: at most -A c (1912.09729). Default off, as in PPO "
        "(some trainers set 3 or 10)",
    )


class Cispo(Knobs):
    """-A stop_gradient(clip(r, weight_min, weight_max)) log pi (2506.13585): every token keeps a gradient.

    The bounds are absolute bounds of the weight. The paper writes them as 1 - eps_low and 1 + eps_high.
    """

    type: Literal["cispo"] = "cispo"
    weight_min: float = Field(
        default=0.0, ge=0, description="lower bound of the weight; default 0, none, as in the paper"
    )
    weight_max: float | None = Field(
        gt=0,
        description="upper bound of the weight; none: unbounded. The paper gives no value, hence no default "
        "(ScaleRL 2510.13786: 4 to 8; some trainers: 1.2)",
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.weight_max is not None and self.weight_max <= self.weight_min:
            raise ValueError(
                f"weight_max={self.weight_max:g} is not above weight_min={self.weight_min:g}: every token would get "
                "the same weight; raise weight_max or lower weight_min"
            )
        return self


Rule = Annotated[PolicyGradient | Weighted | PpoClip | Cispo, Field(discriminator="type")]


class Objective(Knobs):
    """What a policy update minimises; knobs that are absent (see `GOVERNORS`) must be left at their defaults."""

    baseline: Baseline = Field(
        default="none",
        description="subtracted from each reward: nothing; the mean of the batch; the mean of the prompt's group "
        "(GRPO, 2402.03300); the mean of the group's other members (RLOO, 2402.14740); the group's mean weighted by "
        "completion length (OPO, 2505.23585)",
    )
    scale: Scale = Field(
        default="none",
        description="divides the centred rewards: nothing (Dr. GRPO, 2503.20783); the std of the group's rewards "
        "(GRPO); the std of the batch's raw rewards (LitePPO, 2508.08221); whiten_tokens centres and divides by the "
        "statistics over all tokens, each completion counted once a token (REINFORCE++, 2501.03262)",
    )
    scale_ddof: int = Field(
        default=1,
        ge=0,
        le=1,
        description="std with divisor n - ddof; default 1: TRL, verl, OpenRLHF's group norm (numpy: 0)",
    )
    scale_eps: float = Field(
        default=1e-6,
        gt=0,
        description="added to the std, for whiten_tokens to the variance; default: verl (elsewhere 1e-4 to 1e-9)",
    )
    ratio: Ratio = Field(
        default="none",
        description="importance ratio r of the current to the rollout policy: of each token (PPO); of the whole "
        "completion, as the geometric mean of its tokens' (GSPO, 2507.18071, eq. 7) or as their product (RLOO in TRL); "
        "none with policy_gradient, which has no ratio",
    )
    rule: Rule = PolicyGradient()
    aggregation: Aggregation = Field(
        description="how token losses become one number, over the whole optimiser step: mean over tokens (DAPO, "
        "2503.14476, eq. 8); mean over completions of the mean over tokens (GRPO, eq. 3), of the sum over tokens (the "
        "exact policy gradient), or of the sum divided by max_completion_tokens (Dr. GRPO). No default: trainers "
        "disagree under the same algorithm's name",
    )

    @model_validator(mode="after")
    def _knobs_fit_together(self) -> Self:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _problems(objective: Objective) -> Iterator[str]:
    rule, ratio = objective.rule.type, objective.ratio
    if ratio == "none" and rule != "policy_gradient":
        yield (
            f"ratio=none with rule.type={rule}: this rule acts through the importance ratio; set ratio to token, "
            "sequence_mean or sequence_product, or rule.type to policy_gradient"
        )
    knobs = _flatten(objective)
    for knob in _absent(knobs):
        if knobs[knob] != Objective.model_fields[knob].default:
            selector = GOVERNORS[knob]
            yield (
                f"{knob}={knobs[knob]} has no effect while {selector}={knobs[selector]}: leave it out, or choose "
                f"another {selector}"
            )
    # A std is zero where all rewards are equal; what it divides must be zero there too, or A explodes to R / eps.
    if objective.scale == "group_std" and objective.baseline not in GROUP_BASELINES:
        yield (
            f"scale=group_std with baseline={objective.baseline}: in a group of equal rewards the std is zero and the "
            f"uncentred reward is divided by scale_eps; use a group baseline ({', '.join(GROUP_BASELINES)}), or "
            "another scale"
        )
    if objective.scale == "batch_std" and objective.baseline == "none":
        yield (
            "scale=batch_std with baseline=none: in a batch of equal rewards the std is zero and the uncentred reward "
            "is divided by scale_eps; choose a baseline, or another scale"
        )


ABSENT_AT: Mapping[str, tuple[str, str]] = {
    "scale_ddof": ("scale", "none"),
    "scale_eps": ("scale", "none"),
    "ratio": ("rule.type", "policy_gradient"),
}
"""Knob -> its selector, and the selector's value at which the knob does not exist."""

UNIONS: Mapping[str, Mapping[str, type[Knobs]]] = {
    "rule": {
        "policy_gradient": PolicyGradient,
        "weighted": Weighted,
        "ppo_clip": PpoClip,
        "cispo": Cispo,
    }
}
"""Fields that are one of several groups of knobs: field -> type -> group."""

GOVERNORS: Mapping[str, str] = MappingProxyType(
    {knob: selector for knob, (selector, _) in ABSENT_AT.items()}
    | {
        f"{field}.{knob}": f"{field}.type"
        for field, members in UNIONS.items()
        for member in members.values()
        for knob in member.model_fields
        if knob != "type"
    }
)
"""Knob that can be absent -> the selector knob that decides whether it exists."""

KNOB_NAMES: tuple[str, ...] = (
    *(name for name in Objective.model_fields if name not in UNIONS),
    *(f"{field}.type" for field in UNIONS),
    *(knob for knob in GOVERNORS if "." in knob),
)
"""Every knob of the space, whether or not it exists at a given point."""


def active_knobs(objective: Objective) -> dict[str, KnobValue]:
    """The knobs that exist at this point, by dotted name: what is gated, hashed and shown."""
    knobs = _flatten(objective)
    absent = _absent(knobs)
    return {knob: value for knob, value in knobs.items() if knob not in absent}


def _absent(knobs: Mapping[str, KnobValue]) -> list[str]:
    return [knob for knob, (selector, value) in ABSENT_AT.items() if knobs[selector] == value]


def _flatten(knobs: Knobs, prefix: str = "") -> dict[str, KnobValue]:
    flat: dict[str, KnobValue] = {}
    for name, value in knobs:
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Knobs) else {prefix + name: value}
    return flat
