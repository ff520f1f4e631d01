"""CISPO: the ratio as a bounded weight without gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from algorithms.rules import Rule, Sign
from harness.errors import InvalidError

if TYPE_CHECKING:
    from torch import Tensor


class Cispo(Rule):
    """-A stop_gradient(clip(r, weight_min, weight_max)) log pi (2506.13585): every token keeps a gradient.

    The bounds weight_min and weight_max apply to the weight itself. The paper writes them as 1 - eps_low and 1 +
    eps_high.
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
        description="none: clip the weight r; unified: instead drop tokens with r above weight_max and A > 0, or r "
        "below weight_min and A < 0 (the paper's unified formulation). With both bounds, unified has the gradient of "
        "PPO's clip",
    )

    differentiates_ratio: ClassVar[bool] = False
    acts_without_advantage: ClassVar[bool] = False

    def contradictions(self) -> Iterator[InvalidError]:
        if self.weight_max is not None and self.weight_max <= self.weight_min:
            yield InvalidError("algorithms.weights_all_equal", high=self.weight_max, low=self.weight_min)
        if self.mask == "unified" and self.weight_max is None and self.weight_min == 0:
            yield InvalidError("algorithms.mask_without_bounds")

    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        # The weight is detached, so the gradient flows through log pi alone.
        ratio = ratio.detach()
        if self.mask == "unified":
            weights = ratio.masked_fill(self.beyond_bounds(ratio, advantages), 0)
        else:
            weights = ratio.clamp(self.weight_min, self.weight_max)
        return -advantages * weights * logp

    def formula(self) -> str:
        low, high = f"{self.weight_min:g}", "infinity" if self.weight_max is None else f"{self.weight_max:g}"
        eps_high = "none" if self.weight_max is None else f"{self.weight_max - 1:g}"
        eps_low = f"{1 - self.weight_min:g}" if self.weight_min else "none"
        eps = f"in the paper's terms eps_low {eps_low}, eps_high {eps_high}"
        if self.mask == "unified":
            return (
                f"-A stop_gradient(r) log pi, and 0 where A > 0 and r > {high}, or A < 0 and r < {low}; absolute "
                f"bounds, {eps}"
            )
        return f"-A stop_gradient(clip(r, {low}, {high})) log pi; absolute bounds of the weight, {eps}"

    def bounds(self) -> tuple[float, float]:
        return self.weight_min, math.inf if self.weight_max is None else self.weight_max

    def treatment(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return two bool masks: the tokens with a clipped weight, and the tokens that the unified mask drops.

        The weight is clipped at both bounds, whatever the sign of A.
        """
        if self.mask == "unified":
            left_out = self.beyond_bounds(ratio, advantages)
            return left_out & False, left_out
        low, high = self.bounds()
        # Tokens with A = 0 have no gradient, so their bound has no effect.
        bounded = ((ratio < low) | (ratio > high)) & (advantages != 0)
        return bounded, bounded & False

    def slope_at_ratio_one(self, sign: Sign) -> float:
        low, high = self.bounds()
        # The range may exclude 1, because its bounds are absolute. It then scales every token with r = 1 or, with the
        # unified mask, drops those with one sign of A.
        if self.mask == "unified":
            return float(not (high < 1 if sign == "positive" else low > 1))
        return max(low, min(1.0, high))

    def acts_on_sign(self) -> Mapping[str, Sign]:
        # The unified mask depends on the sign of A. The clip of the weight does not.
        return {"weight_min": "negative", "weight_max": "positive"} if self.mask == "unified" else {}
