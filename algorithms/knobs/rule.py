"""`rule`: the loss of one token (or completion) from its advantage A and importance ratio r."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from algorithms.knobs.base import Knobs


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
    mask: Literal["none", "unified"] = Field(
        default="none",
        description="unified: instead of clipping the weight r, drop the tokens whose r a bound acts on (A > 0 above "
        "weight_max, A < 0 below weight_min), the paper's unified formulation; with both bounds it has PPO-clip's "
        "gradient",
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.weight_max is not None and self.weight_max <= self.weight_min:
            raise ValueError(
                f"weight_max={self.weight_max:g} is not above weight_min={self.weight_min:g}: every token would get "
                "the same weight; raise weight_max or lower weight_min"
            )
        if self.mask == "unified" and self.weight_max is None and self.weight_min == 0:
            raise ValueError("mask=unified without bounds masks nothing: set weight_max or weight_min, or mask to none")
        return self


class Sapo(Knobs):
    """-A sigmoid(tau (r - 1)) 4 / tau: a soft gate in place of the clip (SAPO, 2511.20347)."""

    type: Literal["sapo"] = "sapo"
    temperature_positive: float = Field(default=1.0, gt=0, description="tau where A > 0; default: the paper")
    temperature_negative: float = Field(
        default=1.05, gt=0, description="tau where A <= 0, which decays faster; default: the paper"
    )


class Gmpo(Knobs):
    """-A exp(mean over tokens of the clipped log-ratio): the geometric mean of clipped token ratios (GMPO, 2507.20673).

    A token's log-ratio is clipped only where moving further would be rewarded: above for A > 0, below for A < 0.
    """

    type: Literal["gmpo"] = "gmpo"
    log_ratio_low: float = Field(
        default=0.4,
        gt=0,
        description="for A < 0 the log-ratio is clipped from below at -log_ratio_low; default: the paper",
    )
    log_ratio_high: float = Field(
        default=0.4,
        gt=0,
        description="for A > 0 the log-ratio is clipped from above at log_ratio_high; default: the paper",
    )


Rule = Annotated[PolicyGradient | Weighted | PpoClip | Cispo | Sapo | Gmpo, Field(discriminator="type")]
