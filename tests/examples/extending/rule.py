"""A custom rule: SPO (Xie et al. 2401.16025), which pulls a ratio back instead of clipping it as PPO does.

Put the file next to the sweep file, name it under `plugins: [rule]`, and set `objective.rule.type: spo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from algorithms import Rule

if TYPE_CHECKING:  # Commands that only list rules do not import torch, so import it inside the methods that need it.
    from torch import Tensor


# The first line of the docstring is what `bench ls rules` shows.
class Spo(Rule):
    """-A r + |A| (r - 1)^2 / (2 epsilon): a penalty instead of the clip, with its optimum at r = 1 +- epsilon."""

    type: Literal["spo"] = "spo"  # the name of the rule

    # A knob is a field with a range, a default and a description. This one is `objective.rule.epsilon`.
    epsilon: float = Field(default=0.2, gt=0, description="r is pulled towards 1 +- epsilon; default: the paper")

    # Facts about the rule, which bench uses to refuse or skip work. Leave out those that you are not sure of.
    acts_without_advantage: ClassVar[bool] = False  # A = 0 makes the loss 0: such completions need no forward pass
    inert_at_ratio_one: ClassVar[Mapping[str, str]] = {"epsilon": "every ratio is 1, where the penalty has slope 0"}

    def slope_at_ratio_one(self, sign: str) -> float:
        """The gradient at r = 1 is that of the plain policy gradient, -A, whatever the sign of A."""
        return 1.0

    # The loss of each token, to be minimised. Tensors are [completions, tokens]; the gradient flows through `ratio`.
    def loss(self, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
        return -advantages * ratio + advantages.abs() * (ratio - 1) ** 2 / (2 * self.epsilon)

    # The same as text, with the values of all knobs, for `bench show` and the report.
    def formula(self) -> str:
        return f"-A r + |A| (r - 1)^2 / {2 * self.epsilon:g}"

    # The metrics clip/* count tokens beyond these bounds, and token records mark where a bound acted.
    def bounds(self) -> tuple[float, float]:
        return 1 - self.epsilon, 1 + self.epsilon
