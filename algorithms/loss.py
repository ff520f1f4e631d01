"""The policy loss: importance ratio, rule, aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from algorithms.aggregation import aggregate
from algorithms.batch import TokenBatch
from algorithms.diagnostics import TokenTrace, update_metrics
from algorithms.objective import Objective, Ratio
from algorithms.rules import token_losses

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before the exponential, as in verl; beyond it a token has no gradient through r."""


@dataclass(frozen=True)
class Loss:
    """The share of one micro-batch in the loss of its optimiser step: shares add up, in value and in gradient."""

    value: Tensor
    """Scalar; differentiable with respect to `TokenBatch.logp`."""
    trace: TokenTrace
    """Detached token values, from which the metrics of any number of micro-batches are computed together."""

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics of this micro-batch alone; see `combine_metrics`."""
        return update_metrics([self.trace])


def combine_metrics(losses: Sequence[Loss]) -> dict[str, float]:
    """Metrics over all tokens of the given micro-batches, as if they were one batch; see `update_metrics`."""
    return update_metrics([loss.trace for loss in losses])


def policy_loss(objective: Objective, batch: TokenBatch) -> Loss:
    """The objective's loss over the batch's tokens, to be minimised; formulas and sources at `Objective`'s knobs.

    Denominators are those of the whole optimiser step (`TokenBatch.step_sequences`, `step_tokens`), so that the values
    and gradients of micro-batches sum to the step's, however its rows are split.

    Raises ValueError if the aggregation is constant_length and the batch has no max_completion_tokens.
    """
    mask = batch.mask.bool()
    logp = torch.where(mask, batch.logp, 0)
    old_logp = torch.where(mask, batch.old_logp.detach(), 0)
    per_token = batch.advantages if batch.advantages.ndim == 2 else batch.advantages[:, None]
    advantages = torch.where(mask, per_token.detach(), 0)

    log_ratio = logp - old_logp
    ratio = _importance_ratio(objective.ratio, log_ratio, mask)
    losses = token_losses(objective.rule, logp, ratio, advantages)
    return Loss(
        value=aggregate(losses, objective.aggregation, batch),
        trace=TokenTrace(
            rule=objective.rule,
            log_ratio=log_ratio.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)[mask],
            ratio=ratio.detach()[mask],
            advantages=advantages[mask],
        ),
    )


def _importance_ratio(kind: Ratio, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """r of every token [B, T]; the ratio of a whole completion stands at each of its tokens. `log_ratio` is masked."""
    match kind:
        case "none":
            return torch.ones_like(log_ratio)
        case "token":
            log_r = log_ratio
        case "sequence_mean":
            log_r = log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        case "sequence_product":
            log_r = log_ratio.sum(1, keepdim=True)
    return log_r.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().expand_as(log_ratio)
