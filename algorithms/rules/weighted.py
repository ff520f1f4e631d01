"""The importance-weighted policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from algorithms.rules import Rule, Sign

if TYPE_CHECKING:
    from torch import Tensor


class Weighted(Rule):
    """-A r: the importance-weighted gradient without any bound, PPO's L^CPI (1707.06347, eq. 6)."""

    type: Literal["weighted"] = "weighted"

    acts_without_advantage: ClassVar[bool] = False

    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        return -advantages * ratio

    def formula(self) -> str:
        return "-A r"

    def slope_at_ratio_one(self, sign: Sign) -> float:
        return 1.0
