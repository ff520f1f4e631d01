"""The amounts that a cell has spent of its budgets, and the floating-point operations (FLOPs) that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorithms import Objective
from harness.config.run_spec import RunSpec
from harness.training.states import CellProgress

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class TokensSpent:
    """The numbers of tokens over all steps so far, counted as in `harness.training.update_report.StepReport`."""

    generated_tokens: int = 0
    teacher_tokens: int = 0
    trained_tokens: int = 0

    @property
    def progress(self) -> CellProgress:
        """These counts as part of a checkpoint's progress."""
        return {
            "generated_tokens": self.generated_tokens,
            "teacher_tokens": self.teacher_tokens,
            "trained_tokens": self.trained_tokens,
        }


@dataclass(frozen=True)
class FlopsRule:
    """FLOPs per token, by the rule of Kaplan et al. (2001.08361, section 2.1).

    Per token: 2 FLOPs per weight in the forward pass, 2 per weight that gradients propagate through, 2 more per
    trainable
    weight. This is 6 per weight in training if all weights are trainable, and 2 per weight for a sampled token.

    Sampling and passes with gradients count. Prompts, evaluations, and passes without gradients (old log-probs,
    references, teachers, reward models) do not. A critic with its own trunk doubles the cost of training.
    """

    generated: int
    """The FLOPs of each generated token."""
    trained: int
    """The FLOPs of each completion token that is trained on."""

    @classmethod
    def of(cls, model: PreTrainedModel, spec: RunSpec) -> FlopsRule:
        """Return the rule for a policy that is ready to be trained."""
        weights = model.num_parameters()
        learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        objective, trunks = spec.objective, 1
        if isinstance(objective, Objective) and objective.baseline == "critic":
            trunks = 2 if objective.critic.trunk == "own" else 1
        # 2 forward and 2 backward per weight, and 2 more per trainable weight. Frozen weights still propagate
        # gradients.
        return cls(2 * weights, trunks * (4 * weights + 2 * learning))

    def flops(self, spent: TokensSpent) -> float:
        return float(self.generated * spent.generated_tokens + self.trained * spent.trained_tokens)
