"""What a cell has spent of its budgets, and the floating-point operations (FLOPs) that this stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorithms import Objective
from harness.config.run_spec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Spent:
    """Tokens of all steps so far, each as in `harness.training.update_report.StepReport`."""

    generated_tokens: int = 0
    teacher_tokens: int = 0
    trained_tokens: int = 0


@dataclass(frozen=True)
class FlopsRule:
    """FLOPs of a token, by the rule of Kaplan et al. (2001.08361, section 2.1): 2 for each weight that it passes
    forward, 2 for each that its gradient passes on the way back, and 2 for each weight that learns. That is 6 in all
    for a model whose weights all learn, and 2 for a token that is sampled.

    Counted are sampling and the passes with gradient. Prompts are left out, and so are passes without gradient (old
    log-probs, references, teachers, reward models) and evaluations. A critic with a trunk of its own doubles training.
    """

    generated: int
    """FLOPs of a generated token."""
    trained: int
    """FLOPs of a completion token that a gradient is taken of."""

    @classmethod
    def of(cls, model: PreTrainedModel, spec: RunSpec) -> FlopsRule:
        """model: the policy, ready to be trained."""
        weights = model.num_parameters()
        learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        objective, trunks = spec.objective, 1
        if isinstance(objective, Objective) and objective.baseline == "critic":
            trunks = 2 if objective.critic.trunk == "own" else 1
        return cls(2 * weights, trunks * (4 * weights + 2 * learning))

    def flops(self, spent: Spent) -> float:
        return float(self.generated * spent.generated_tokens + self.trained * spent.trained_tokens)
