"""What the policy update learns from: completions with their rewards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from harness.training.sequences import Sequences


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout batch of N completions of at most T tokens, with its rewards."""

    sequences: Sequences
    sampler_logps: Tensor
    """[N, T] log-probs that the sampler reported."""
    rewards: Tensor
    """[N] float; NaN: could not be scored."""
    groups: Tensor
    """[N] int64, equal for completions of one prompt."""
    max_completion_tokens: int
    """The limit under which they were drawn."""
    loss_mask: Tensor
    """Bool [N, T]: completion tokens that enter the loss."""
    correct: Tensor
    """Bool [N]: the grader's verdict, for metrics only."""
    token_rewards: Tensor | None = None
    """[N, T] rewards of steps within completions; see `algorithms.advantages`."""

    def rows(self, kept: Tensor) -> ScoredRollout:
        """The rows where `kept` (bool [N]) is true, in their order."""
        chosen = kept.nonzero()[:, 0]
        return replace(
            self,
            sequences=self.sequences.rows(chosen),
            sampler_logps=self.sampler_logps[chosen],
            rewards=self.rewards[chosen],
            groups=self.groups[chosen],
            loss_mask=self.loss_mask[chosen],
            correct=self.correct[chosen],
            token_rewards=None if self.token_rewards is None else self.token_rewards[chosen],
        )
