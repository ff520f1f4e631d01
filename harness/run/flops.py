"""What a cell has spent of its budgets, and the floating-point operations (FLOPs) that this amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorithms import Objective
from harness.config.run_spec import RunSpec
from harness.training.states import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class TokensSpent:
    """Tokens of all steps so far, counted as in `harness.training.update_report.StepReport`."""

    generated_tokens: int = 0
    teacher_tokens: int = 0
    trained_tokens: int = 0

    @property
    def progress(self) -> Progress:
        """The part of a checkpoint's progress that holds them."""
        return {
            "generated_tokens": self.generated_tokens,
            "teacher_tokens": self.teacher_tokens,
            "trained_tokens": self.trained_tokens,
        }


@dataclass(frozen=True)
class FlopsRule:
    """FLOPs per token, by the rule of Kaplan et al. (2001.08361, section 2.1).

    A token costs 2 for each weight in the forward pass and 2 for each that its gradient passes on the way back. It
    costs 2 more for each weight that learns. That is 6 in all for a model whose weights all learn, and 2 for a sampled
    token.

    Sampling and the passes with gradient count. Prompts are left out, and so are passes without gradient (old
    log-probs, references, teachers, reward models) and evaluations. A critic with a trunk of its own doubles training.
    """

    generated: int
    """FLOPs per generated token."""
    trained: int
    """FLOPs per completion token that a gradient is taken of."""

    @classmethod
    def of(cls, model: PreTrainedModel, spec: RunSpec) -> FlopsRule:
        """Derive the rule from a policy that is ready to be trained."""
        weights = model.num_parameters()
        learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        objective, trunks = spec.objective, 1
        if isinstance(objective, Objective) and objective.baseline == "critic":
            trunks = 2 if objective.critic.trunk == "own" else 1
        # 2 forward and 2 backward for every weight, and 2 more for each weight that learns: frozen weights still pass
        # gradients.
        return cls(2 * weights, trunks * (4 * weights + 2 * learning))

    def flops(self, spent: TokensSpent) -> float:
        return float(self.generated * spent.generated_tokens + self.trained * spent.trained_tokens)
