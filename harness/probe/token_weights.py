"""What an objective makes of a batch: the derivative of its loss by every token's log-prob and entropy.

With them the gradient is sum over tokens of weight x gradient of the token's log-prob (and entropy), so that one
forward pass serves any number of objectives. They come from the very `advantages` and `policy_loss` of training.

Shapes: N completions in a pool, B in an estimate, T tokens of the longest one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor

from algorithms import Objective, TokenBatch, advantages, policy_loss
from harness.training.prepared_rollout import peers_of
from harness.training.row_filters import filter_rows
from harness.training.scored_rollout import ScoredRollout


@dataclass(frozen=True, kw_only=True)
class WeighedRollout(ScoredRollout):
    """A rollout batch that takes the policy's log-probs and entropies along when rows are left out."""

    logps: Tensor
    """[N, T]"""
    entropy: Tensor
    """[N, T] in nats."""

    @classmethod
    def of(cls, rollout: ScoredRollout, logps: Tensor, entropy: Tensor) -> Self:
        own = {field.name: getattr(rollout, field.name) for field in fields(ScoredRollout)}
        return cls(**own, logps=logps, entropy=entropy)

    def rows(self, kept: Tensor) -> Self:
        """As in the base class."""
        return self.of(super().rows(kept), self.logps[kept], self.entropy[kept])


class TokenWeights(NamedTuple):
    """Derivatives of the loss, [N, T] each."""

    of_logps: Tensor
    of_entropy: Tensor


def token_weights(
    objective: Objective, rollout: WeighedRollout, truncated: Tensor, batch_size: int, seed: int
) -> TokenWeights:
    """The weights of every completion of a pool [N, T] in the estimate that it belongs to.

    Each batch_size rows, of whole groups, are one estimate: one optimiser step at the policy that sampled them, so all
    ratios are 1. truncated [N] bool: cut at the completion limit.
    """
    parts = []
    count = len(truncated)
    for start in range(0, count, batch_size):
        rows = (torch.arange(count) >= start) & (torch.arange(count) < start + batch_size)
        parts.append(_of_estimate(objective, rollout.rows(rows), truncated[rows], seed))
    return TokenWeights(*map(torch.cat, zip(*parts, strict=True)))


def _of_estimate(objective: Objective, rollout: WeighedRollout, truncated: Tensor, seed: int) -> TokenWeights:
    logps = rollout.logps.clone().requires_grad_()
    entropy = rollout.entropy.clone().requires_grad_()
    # It takes rows out by their own `rows`, so they keep their log-probs.
    filtered = cast(
        WeighedRollout, filter_rows(objective, replace(rollout, logps=logps, entropy=entropy), truncated).rollout
    )
    if len(filtered.groups) == 0:
        return TokenWeights(torch.zeros_like(logps), torch.zeros_like(entropy))
    advantage = advantages(
        objective,
        filtered.rewards,
        filtered.groups,
        filtered.sequences.mask,
        token_rewards=filtered.token_rewards,
        peers=peers_of(filtered.groups, seed, step=0) if objective.baseline == "random_peer" else None,
    )
    batch = TokenBatch(
        logp=filtered.logps,
        old_logp=filtered.logps.detach(),
        mask=filtered.loss_mask,
        advantages=advantage,
        sampler_logp=filtered.sampler_logps,
        entropy=filtered.entropy,
        groups=filtered.groups,
        max_completion_tokens=filtered.max_completion_tokens,
    )
    loss = policy_loss(objective, batch).value
    return TokenWeights(*torch.autograd.grad(loss, (logps, entropy), allow_unused=True, materialize_grads=True))
