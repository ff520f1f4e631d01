"""Rules without an importance ratio: the plain policy gradient, and supervised learning of the completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from algorithms.rules import Ratio, Rule, Sign

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradient(Rule):
    """-A log pi: the score-function gradient (Williams 1992). This rule has no importance ratio."""

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


class Supervised(Rule):
    """-log pi of every token: cross entropy on the completions, whatever their rewards.

    On a teacher's completions this is sequence-level distillation (Kim and Rush, 1606.07947). On given solutions it is
    supervised fine-tuning. To train on correct completions only, use `policy_gradient` without a baseline (`rft`).
    """

    type: Literal["supervised"] = "supervised"

    ratios: ClassVar[tuple[Ratio, ...]] = ()
    differentiates_ratio: ClassVar[bool] = False
    reads_advantage: ClassVar[bool] = False

    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        return -logp

    def formula(self) -> str:
        return "-log pi, whatever A is"
