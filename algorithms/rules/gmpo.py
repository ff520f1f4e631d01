"""GMPO: the geometric mean of clipped token ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from algorithms.rules import Ratio, Rule, Sign, bounded_exp

if TYPE_CHECKING:
    from torch import Tensor


class Gmpo(Rule):
    """-A exp(mean over tokens of the clipped log-ratio): the geometric mean of clipped token ratios (GMPO, 2507.20673).

    A token's log-ratio is clipped only in the direction of its advantage: from above if A > 0, from below if A < 0.
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

    ratios: ClassVar[tuple[Ratio, ...]] = ("sequence_mean",)
    acts_without_advantage: ClassVar[bool] = False
    inert_at_ratio_one: ClassVar[Mapping[str, str]] = {
        "log_ratio_low": "every log-ratio is 0, inside any clip range",
        "log_ratio_high": "every log-ratio is 0, inside any clip range",
    }

    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        return -advantages * ratio

    def formula(self) -> str:
        return (
            "-A r, but with log(pi / pi_old) of each token clipped before the mean: at most "
            f"{self.log_ratio_high:g} where A > 0, at least {-self.log_ratio_low:g} where A < 0"
        )

    def clip_log_ratios(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        # Clipping comes before the mean, so a clipped token loses its gradient but the completion keeps one.
        lowered = log_ratio.clamp(max=self.log_ratio_high).where(advantages > 0, log_ratio)
        return lowered.clamp(min=-self.log_ratio_low).where(advantages < 0, lowered)

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of a token's ratio. The completion's ratio has no bounds."""
        return math.exp(-self.log_ratio_low), math.exp(self.log_ratio_high)

    def bounded_ratio(self, ratio: Tensor, log_ratio: Tensor) -> Tensor:
        return bounded_exp(log_ratio)

    def slope_at_ratio_one(self, sign: Sign) -> float:
        return 1.0

    def acts_on_sign(self) -> Mapping[str, Sign]:
        return {"log_ratio_low": "negative", "log_ratio_high": "positive"}
