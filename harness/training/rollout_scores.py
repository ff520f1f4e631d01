"""What the current weights say about a rollout batch, without gradient. Shapes: N rows, T longest completion."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.spec.run_spec import RunSpec
from harness.training.critic import Critic
from harness.training.sequences import Sequences, completion_hidden, passes, score_completions, score_hidden
from harness.training.token_budget import TokenBudget


@dataclass(frozen=True)
class RolloutScores:
    """[N, T] float32 on the CPU, 0 in padding and in rows that were not scored."""

    logps: Tensor
    entropy: Tensor
    values: Tensor

    @classmethod
    def empty(cls, sequences: Sequences) -> RolloutScores:
        return cls(*(torch.zeros(sequences.completions.shape) for _ in range(3)))


@dataclass
class Scorer:
    """Scores rows of a rollout batch with a policy and, where there is one, a critic.

    budget: shared with other passes of the update; none: one of its own.
    """

    policy: PreTrainedModel
    critic: Critic | None
    spec: RunSpec
    pad_token_id: int
    budget: InitVar[TokenBudget | None] = None

    def __post_init__(self, budget: TokenBudget | None) -> None:
        self._budget = budget or TokenBudget.of(self.spec)

    @torch.inference_mode()
    def fill(self, scores: RolloutScores, sequences: Sequences, rows: Tensor) -> None:
        """Score the rows (int64 indices) and write the results into `scores`."""
        spec = self.spec

        def score(micro: Tensor) -> None:
            hidden, completions, mask = completion_hidden(self.policy, sequences, micro, self.pad_token_id)
            logps, entropy = score_hidden(
                self.policy, hidden, completions, mask, spec.rollout.temperature, spec.train.logits_chunk_tokens
            )
            longest = logps.shape[1]
            scores.logps[micro, :longest] = logps.cpu()
            scores.entropy[micro, :longest] = entropy.cpu()
            if self.critic is not None:
                values = self.critic.values(sequences, micro, hidden, self.pad_token_id)
                scores.values[micro, :longest] = values.cpu()

        passes(self._budget, self.policy, sequences, rows, score)

    @torch.inference_mode()
    def logps_of(self, model: PreTrainedModel, sequences: Sequences) -> Tensor:
        """[N, T] the log-probs of all rows under another model."""
        logps = torch.zeros(sequences.completions.shape)
        spec = self.spec

        def score(micro: Tensor) -> None:
            scored, _ = score_completions(
                model, sequences, micro, spec.rollout.temperature, self.pad_token_id, spec.train.logits_chunk_tokens
            )
            logps[micro, : scored.shape[1]] = scored.cpu()

        passes(self._budget, model, sequences, torch.arange(len(logps)), score)
        return logps
