"""The policy loss: all terms of the objective, each aggregated over the tokens of an optimiser step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.aggregation import aggregate
from algorithms.batch import TokenBatch, masked
from algorithms.critic import value_losses
from algorithms.diagnostics import TokenTrace, ValueTrace, update_metrics
from algorithms.kl import kl_estimate
from algorithms.knobs.kl import KlInLoss
from algorithms.objective import Objective
from algorithms.ratios import importance_ratio
from algorithms.rules import bounded_ratio, clipped_log_ratio, token_losses
from algorithms.sampler_correction import bounded_weights, raw_weights
from algorithms.selection import select_tokens, selected_losses


class Coefficients(NamedTuple):
    """Coefficients that a controller may move from step to step."""

    entropy: float
    """Of the entropy bonus."""
    kl: float
    """beta of the KL penalty in the loss; without one it is not used."""


@dataclass(frozen=True)
class Loss:
    """The share of one micro-batch in the loss of its optimiser step: shares add up, in value and in gradient."""

    value: Tensor
    """Scalar; differentiable with respect to `logp`, `entropy` and `values` of the `TokenBatch`."""
    trace: TokenTrace
    """Detached token values, from which the metrics of any number of micro-batches are computed together."""

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics of this micro-batch alone; see `combine_metrics`."""
        return update_metrics([self.trace])


def combine_metrics(losses: Sequence[Loss], steps: int = 1) -> dict[str, float]:
    """Metrics over all tokens of the given micro-batches, as if they were one batch; see `update_metrics`.

    `steps` is the number of optimiser steps that the micro-batches make up: loss/* are means over them.
    """
    return update_metrics([loss.trace for loss in losses], steps)


def policy_loss(objective: Objective, batch: TokenBatch, coefficients: Coefficients | None = None) -> Loss:
    """The objective's loss over the batch's tokens, to be minimised; formulas and sources at `Objective`'s knobs.

        aggregate(w policy + beta KL + sequence penalty) - c mean(entropy) + critic.coef mean(value losses)

    w is the sampler correction, the policy term that of the rule after `select`, and both means are over the tokens of
    the optimiser step, whatever the aggregation. Denominators are those of the whole step (`TokenBatch.step_*`), so
    that the values and gradients of micro-batches sum to the step's, however its rows are split.

    `coefficients` are c and beta; none: entropy.bonus and kl.beta. Without `batch.values` there is no value term.
    Log-probs of half precision count as float32.

    Raises ValueError if the batch lacks what a term needs, naming the field.
    """
    if coefficients is None:
        coefficients = Coefficients(objective.entropy.bonus, 0.0 if objective.kl.where == "none" else objective.kl.beta)
    mask = batch.mask.bool()
    logp = masked(mask, batch.logp)
    per_token = batch.advantages if batch.advantages.ndim == 2 else batch.advantages[:, None]
    advantages = masked(mask, per_token.detach())
    old_logp = masked(mask, batch.old_logp.detach())
    log_ratio = logp - old_logp
    ratio = importance_ratio(objective.ratio, clipped_log_ratio(objective.rule, log_ratio, advantages), mask)

    losses = token_losses(objective.rule, logp, ratio, advantages)
    selected = _selected(objective, batch)
    if selected is not None:
        losses = selected_losses(objective.select, losses, selected, log_ratio)
    weights = _raw_weights(objective, batch)
    if weights is not None:
        losses = losses * bounded_weights(objective.sampler_correction, weights)

    shares = {"policy": aggregate(losses, objective.aggregation, batch)}
    if objective.kl.where == "loss":
        estimates = _kl(objective.kl, batch, logp, old_logp)
        shares["kl"] = coefficients.kl * aggregate(estimates, objective.aggregation, batch)
    if objective.sequence_penalty > 0:
        penalties = objective.sequence_penalty / 2 * _squared_sequence_log_ratio(log_ratio, mask)
        shares["sequence_penalty"] = aggregate(penalties, objective.aggregation, batch)
    if coefficients.entropy > 0:
        entropy = _needed("entropy", batch.entropy, "the entropy bonus")
        shares["entropy"] = -coefficients.entropy * aggregate(masked(mask, entropy), "token_mean", batch)
    values = _value_trace(objective, batch)
    if values is not None:
        losses = value_losses(*values, objective.critic.value_clip)
        shares["value"] = objective.critic.coef * aggregate(losses, "token_mean", batch)

    return Loss(
        value=torch.stack(list(shares.values())).sum(),
        trace=TokenTrace(
            objective=objective,
            mask=mask,
            log_ratio=log_ratio.detach(),
            ratio=bounded_ratio(objective.rule, ratio.detach(), log_ratio.detach()),
            advantages=advantages,
            ref_log_ratio=None if batch.ref_logp is None else logp.detach() - batch.ref_logp.detach(),
            selected=selected,
            raw_weights=weights,
            values=None if values is None else ValueTrace(*(tensor.detach() for tensor in values)),
            shares={name: share.detach() for name, share in shares.items()},
        ),
    )


def update_metric_names(objective: Objective) -> tuple[str, ...]:
    """Names of the metrics that an objective's updates have, where there is a token.

    kl/*_ref are among them if its KL penalty needs log-probs of a reference, loss/entropy if it can have a bonus.
    """
    one_token = torch.zeros(1, 1)
    has_reference = objective.kl.where != "none" and objective.kl.reference != "iteration_start"
    batch = TokenBatch(
        logp=one_token,
        old_logp=one_token,
        mask=torch.ones(1, 1),
        advantages=one_token,
        ref_logp=one_token if has_reference else None,
        sampler_logp=one_token,
        entropy=one_token,
        values=one_token,
        old_values=one_token,
        returns=one_token,
        groups=torch.zeros(1),
        max_completion_tokens=1,
    )
    has_bonus = objective.entropy.bonus > 0 or objective.entropy.adaptive.type != "none"
    return tuple(policy_loss(objective, batch, Coefficients(entropy=float(has_bonus), kl=1.0)).metrics)


def _needed(name: str, tensor: Tensor | None, reason: str) -> Tensor:
    if tensor is None:
        raise ValueError(f"{reason} needs {name}, but the batch has none: set TokenBatch.{name}")
    return tensor


def _selected(objective: Objective, batch: TokenBatch) -> Tensor | None:
    if objective.select.type == "none":
        return None
    if batch.selected is not None:
        return batch.selected
    if batch.is_whole_step:
        return select_tokens(objective, batch.logp, batch.old_logp, batch.advantages, batch.mask, batch.entropy)
    raise ValueError(
        f"select.type={objective.select.type} chooses among the tokens of the whole optimiser step, but the batch is a "
        "part of one (it has step_* numbers): call select_tokens on the whole step and set TokenBatch.selected to this "
        "batch's part of it"
    )


def _raw_weights(objective: Objective, batch: TokenBatch) -> Tensor | None:
    correction = objective.sampler_correction
    if correction.type == "none":
        return None
    sampler_logp = _needed("sampler_logp", batch.sampler_logp, f"sampler_correction.type={correction.type}")
    return raw_weights(correction, batch.old_logp, sampler_logp, batch.mask)


def _kl(kl: KlInLoss, batch: TokenBatch, logp: Tensor, old_logp: Tensor) -> Tensor:
    """[B, T] the estimates of the KL, with gradient; `logp` and `old_logp` are masked."""
    if kl.reference == "iteration_start":
        return kl_estimate(kl.estimator, logp, old_logp, old_logp)
    ref_logp = _needed("ref_logp", batch.ref_logp, f"kl.reference={kl.reference}")
    return kl_estimate(kl.estimator, logp, masked(batch.mask.bool(), ref_logp), old_logp)


def _squared_sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """[B, T] (sum over the completion's tokens of log r)^2 / their number, at each of them."""
    squares = log_ratio.sum(1, keepdim=True) ** 2
    return (squares / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(log_ratio)


def _value_trace(objective: Objective, batch: TokenBatch) -> ValueTrace | None:
    """The critic's values, with gradient, masked."""
    if objective.baseline != "critic" or batch.values is None:
        return None
    mask = batch.mask.bool()
    old_values = _needed("old_values", batch.old_values, "the value loss")
    returns = _needed("returns", batch.returns, "the value loss")
    return ValueTrace(masked(mask, batch.values), masked(mask, old_values), masked(mask, returns))
