"""The plain policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from algorithms.rules import Ratio, Rule, Sign

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradient(Rule):
    """-A log pi: the score-function gradient (Williams 1992). It has no importance ratio."""

    type: Literal["policy_gradient"] = "policy_gradient"

    ratios: ClassVar[tuple[Ratio, ...]] = ()
    differentiates_ratio: ClassVar[bool] = False
    acts_without_advantage: ClassVar[bool] = False

    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        return -advantages * logp

    def formula(self) -> str:
        return "-A log pi"

    def slope_at_ratio_one(self, sign: Sign) -> float:
        return 1.0
