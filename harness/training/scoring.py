"""What the current weights say about a rollout batch, without gradient. Shapes: N rows, T longest completion.

The critic of PPO: a value for every token of a completion, before it is drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import InitVar, dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.config.run_spec import RunSpec
from harness.training.batching import TokenBudget
from harness.training.sequences import Sequences, completion_hidden, passes, score_completions, score_hidden


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


class Critic(nn.Module):
    """A value head on hidden states: of a trunk of its own, a copy of the starting policy, or of the policy's.

    The head starts at 0, so that all values do.
    """

    def __init__(self, policy: PreTrainedModel, trunk: str) -> None:
        """trunk: `own` or `shared`; the policy must hold its starting weights."""
        super().__init__()
        self.trunk = copy.deepcopy(policy) if trunk == "own" else None
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # The output embedding of a trunk predicts nothing here.
        if self.trunk is not None and not policy.config.get_text_config().tie_word_embeddings:
            self.trunk.get_output_embeddings().requires_grad_(False)

    def values(self, sequences: Sequences, rows: Tensor, policy_hidden: Tensor, pad_token_id: int) -> Tensor:
        """[len(rows), T'] the value of each completion token's state, before it is drawn; 0 in padding.

        policy_hidden [len(rows), T', D]: the policy's hidden states at these rows, used where the trunk is shared.
        """
        hidden = policy_hidden
        if self.trunk is not None:
            hidden, _, _ = completion_hidden(self.trunk, sequences, rows, pad_token_id)
        values: Tensor = self.head(hidden.to(self.head.weight.dtype))[:, :, 0]
        mask = sequences.mask[rows, : values.shape[1]].to(values.device)
        return values.float().where(mask, 0.0)

    def trained(self) -> Iterator[nn.Parameter]:
        return (weight for weight in self.parameters() if weight.requires_grad)
