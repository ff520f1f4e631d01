"""The policy loss: the sum of the objective's terms, each divided by a count over the whole optimiser step.

Shapes: B is the number of completions, T the number of tokens in the longest completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.aggregation import AGGREGATIONS, Aggregation, Count
from algorithms.critic import value_losses
from algorithms.diagnostics import TokenTrace, ValueTrace, update_metrics
from algorithms.kl import KlInLoss, kl_estimate
from algorithms.objective import Objective
from algorithms.rules import checked, importance_ratio, token_losses
from algorithms.sampler_correction import NoCorrection, SamplerWeights, corrected
from algorithms.selection import select_tokens, selected_losses
from harness.errors import InvalidError

_PER_TOKEN = (
    *("old_logp", "mask", "ref_logp", "sampler_logp", "entropy", "divergence", "selected"),
    *("values", "old_values", "returns"),
)


class StepSize(NamedTuple):
    """The size of an optimiser step, from which the denominators of its losses are computed.

    Each aggregation needs one or two of these counts; the others may be None.
    """

    sequences: int | None = None
    """Number of completions, including fully masked completions."""
    tokens: int | None = None
    """Number of mask-1 tokens."""
    groups: int | None = None
    """Number of groups, including fully masked groups."""
    micro_batches: int | None = None
    """Number of micro-batches in the step."""


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """A micro-batch: some rows of one optimiser step, in any order.

    Entries with mask 0 are ignored, even if they are NaN or infinite. If `step` is None, the batch is a complete
    optimiser step, and its counts are taken from its rows. `step_sequences` and `step_tokens` are a short way to pass a
    `step` with only these two counts.
    Raises ValueError if the fields do not fit together.
    """

    logp: Tensor
    """[B, T] log-probs under the policy that is being updated, at the sampling temperature; carries the gradient."""
    old_logp: Tensor
    """[B, T] log-probs under the policy before the batch's first update, recomputed by the trainer."""
    mask: Tensor
    """[B, T] 1 or true for tokens that enter the loss, else 0."""
    advantages: Tensor
    """[B] or [B, T], computed over the whole rollout batch."""
    ref_logp: Tensor | None = None
    """[B, T] log-probs under the reference policy of the KL penalty."""
    sampler_logp: Tensor | None = None
    """[B, T] log-probs that the sampling engine reported; needed by the sampler correction."""
    entropy: Tensor | None = None
    """[B, T] entropy over the vocabulary, in nats; with gradient if there is an entropy bonus."""
    divergence: Tensor | None = None
    """[B, T] divergence between teacher and student in nats, with gradient; needed with distill.where=loss."""
    selected: Tensor | None = None
    """[B, T] bool: which of these tokens `select_tokens` chose, over the complete step."""
    values: Tensor | None = None
    """[B, T] the critic's values, with gradient; if None, the loss has no value term."""
    old_values: Tensor | None = None
    """[B, T] the critic's values at the time of the rollout."""
    returns: Tensor | None = None
    """[B, T] the targets of the values."""
    groups: Tensor | None = None
    """[B] integers: rows with equal numbers answer one prompt."""
    group_tokens: Tensor | None = None
    """[B] mask-1 tokens in the whole group of each row; needed on a part of a step, for means over groups."""
    max_completion_tokens: int | None = None
    """The rollout's limit, a divisor of some aggregations."""
    step: StepSize | None = None
    """The size of the optimiser step that contains this batch; None if the batch is the complete step."""
    step_sequences: InitVar[int | None] = None
    step_tokens: InitVar[int | None] = None

    def __post_init__(self, step_sequences: int | None, step_tokens: int | None) -> None:
        if step_sequences is not None or step_tokens is not None:
            if self.step is not None:
                raise InvalidError("algorithms.step_given_twice")
            # A frozen dataclass refuses `self.step = ...`, even here.
            object.__setattr__(self, "step", StepSize(step_sequences, step_tokens))
        if self.logp.ndim != 2:
            raise InvalidError("algorithms.shape", name="logp", shape=list(self.logp.shape), needed="[B, T]")
        B, T = self.logp.shape
        for name in _PER_TOKEN:
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None and tensor.shape != (B, T):
                needed = f"that of logp, {[B, T]}"
                raise InvalidError("algorithms.shape", name=name, shape=list(tensor.shape), needed=needed)
        if self.advantages.shape not in ((B,), (B, T)):
            shape = list(self.advantages.shape)
            raise InvalidError("algorithms.shape", name="advantages", shape=shape, needed=f"{[B]} or {[B, T]}")
        for name, tensor in (("groups", self.groups), ("group_tokens", self.group_tokens)):
            if tensor is not None and tensor.shape != (B,):
                raise InvalidError("algorithms.shape", name=name, shape=list(tensor.shape), needed=f"{[B]}")
        if self.selected is not None and self.selected.dtype != torch.bool:
            raise InvalidError("algorithms.selected_not_bool", dtype=self.selected.dtype)
        if self.mask.dtype != torch.bool and not ((self.mask == 0) | (self.mask == 1)).all():
            raise InvalidError("algorithms.mask_not_binary")
        self._check_counts()

    def _check_counts(self) -> None:
        step = self.step or StepSize()
        counts = {"max_completion_tokens": self.max_completion_tokens}
        counts |= {f"step.{name}": count for name, count in step._asdict().items()}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise InvalidError("algorithms.count_below_one", name=name, count=count)
        B = self.logp.shape[0]
        if step.sequences is not None and step.sequences < B:
            raise InvalidError("algorithms.step_too_small", name="step.sequences", count=step.sequences, here=B)
        if step.tokens is None and self.group_tokens is None:
            return
        lengths = self.mask.sum(1)
        short = torch.zeros_like(lengths) if self.group_tokens is None else self.group_tokens < lengths
        # Stacked, so that one transfer from the device fetches both sums.
        tokens, short_rows = map(int, torch.stack([lengths.sum(), short.sum()]).tolist())
        if step.tokens is not None and step.tokens < tokens:
            raise InvalidError("algorithms.step_too_small", name="step.tokens", count=step.tokens, here=tokens)
        if short_rows:
            raise InvalidError("algorithms.group_tokens_too_few")


class Coefficients(NamedTuple):
    """Coefficients that a controller may change from step to step."""

    entropy: float
    """Factor of the entropy bonus."""
    kl: float
    """beta of the KL penalty in the loss; ignored if the loss has none."""


@dataclass(frozen=True)
class Loss:
    """One micro-batch's share of its optimiser step's loss. The shares sum to the step's value and gradient."""

    value: Tensor
    """Scalar; differentiable with respect to `logp`, `entropy`, `divergence` and `values` of the `TokenBatch`."""
    trace: TokenTrace
    """Detached per-token values, from which metrics are computed over one or several micro-batches."""

    def with_share(self, name: str, share: Tensor) -> Loss:
        """Return this loss, detached, plus a scalar term whose gradient was computed elsewhere."""
        shares = {**self.trace.shares, name: share}
        return Loss(self.value.detach() + share, replace(self.trace, shares=shares))

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of this micro-batch alone; see `update_metrics`."""
        return update_metrics([self.trace])


def combine_metrics(losses: Sequence[Loss], steps: int = 1) -> dict[str, float]:
    """Compute the metrics of several micro-batches as if they were one batch; see `update_metrics`.

    steps: the number of optimiser steps that the micro-batches form. The loss/* metrics are means over these steps.
    """
    return update_metrics([loss.trace for loss in losses], steps)


def policy_loss(
    objective: Objective, batch: TokenBatch, coefficients: Coefficients | None = None, is_first: bool = False
) -> Loss:
    """Compute the objective's loss over the batch's tokens, to be minimised.

        aggregate(w policy + beta KL + distill.coef D + sequence penalty) - c mean(entropy)
            + critic.coef mean(value losses)

    w is the weight of the sampler correction. policy is the rule's loss after `select`. Both means are over the tokens
    of the optimiser step, whatever the aggregation. The knobs of `Objective` give the formulas and sources. All
    denominators count over the complete step (`TokenBatch.step`), so the values and gradients of micro-batches sum to
    those of the step, however its rows are split. Half-precision log-probs are converted to float32.

    coefficients: c and beta; default: entropy.bonus and kl.beta.
    is_first: whether this is the run's first optimiser step.
    Raises ValueError if the batch lacks a field that a term needs. Raises RefusedError if the rule's loss is unusable,
    as `token_losses` describes.
    """
    if coefficients is None:
        coefficients = Coefficients(objective.entropy.bonus, 0.0 if objective.kl.where == "none" else objective.kl.beta)
    rule, mask = objective.rule, batch.mask.bool()
    logp = masked(mask, batch.logp)
    per_token = batch.advantages if batch.advantages.ndim == 2 else batch.advantages[:, None]
    advantages = masked(mask, per_token.detach())
    old_logp = masked(mask, batch.old_logp.detach())
    weights, behind_logp = _corrected(objective, batch, old_logp)
    log_ratio = logp - behind_logp
    # gmpo clips the log-ratios of tokens before they form the ratio of the completion. Metrics and penalties use the
    # unclipped log_ratio.
    clipped = checked(rule, "clip_log_ratios", rule.clip_log_ratios(log_ratio, advantages), log_ratio)
    ratio = importance_ratio(objective.ratio, clipped, mask)

    losses = token_losses(rule, logp, ratio, advantages, mask, is_first)
    selected = _selected(objective, batch)
    if selected is not None:
        losses = selected_losses(objective.select, losses, selected, log_ratio)
    if weights is not None:
        # Only the policy term is weighted, as in TRL and verl, not the KL and the other terms below.
        losses = losses * weights.weights

    shares = {"policy": aggregate(losses, objective.aggregation, batch)}
    if objective.kl.where == "loss":
        estimates = _kl(objective.kl, batch, logp, old_logp)
        shares["kl"] = coefficients.kl * aggregate(estimates, objective.aggregation, batch)
    divergence = None
    if objective.distill.where == "loss":
        divergence = masked(mask, _needed("divergence", batch.divergence, "distill.where=loss"))
        shares["distill"] = objective.distill.coef * aggregate(divergence, objective.aggregation, batch)
    if objective.sequence_penalty > 0:
        penalties = objective.sequence_penalty / 2 * _squared_sequence_log_ratio(log_ratio, mask)
        shares["sequence_penalty"] = aggregate(penalties, objective.aggregation, batch)
    if coefficients.entropy > 0:
        # The mean is over tokens, as in TRL. verl uses the aggregation, so that there the bonus depends on lengths.
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
            ratio=checked(rule, "bounded_ratio", rule.bounded_ratio(ratio.detach(), log_ratio.detach()), log_ratio),
            advantages=advantages,
            ref_log_ratio=None if batch.ref_logp is None else logp.detach() - batch.ref_logp.detach(),
            selected=selected,
            weights=weights,
            divergence=None if divergence is None else divergence.detach(),
            values=None if values is None else ValueTrace(*(tensor.detach() for tensor in values)),
            shares={name: share.detach() for name, share in shares.items()},
        ),
    )


def update_metric_names(objective: Objective) -> tuple[str, ...]:
    """Return the names of all metrics that an update with this objective reports if it has at least one token.

    kl/*_ref are included if the KL penalty needs log-probs of a reference. loss/entropy is included if the entropy
    bonus is on or adaptive.
    """
    # The names come from a real loss on one token, with every field that a term could need. So they cannot get stale.
    one_token = torch.zeros(1, 1)
    has_reference = objective.kl.where != "none" and objective.kl.reference != "iteration_start"
    batch = TokenBatch(
        *(one_token, one_token, torch.ones(1, 1), one_token),
        ref_logp=one_token if has_reference else None,
        sampler_logp=one_token,
        entropy=one_token,
        divergence=one_token,
        values=one_token,
        old_values=one_token,
        returns=one_token,
        groups=torch.zeros(1),
        max_completion_tokens=1,
    )
    has_bonus = objective.entropy.bonus > 0 or objective.entropy.adaptive.type != "none"
    return tuple(policy_loss(objective, batch, Coefficients(entropy=float(has_bonus), kl=1.0)).metrics)


def aggregate(losses: Tensor, aggregation: Aggregation, batch: TokenBatch) -> Tensor:
    """Return this batch's share [] of the step's loss, from token losses [B, T].

    Shares add up to the loss of the step, however its rows are split into micro-batches, unless the aggregation itself
    depends on the split. A fully masked completion, group or micro-batch adds nothing to the sum. It counts
    in the denominator over its kind and not in those over tokens (as in TRL and in verl's engines).
    Raises ValueError if the batch lacks a count that the aggregation divides by.
    """
    mask = batch.mask.bool()
    return torch.where(mask, losses / _divisors(mask, aggregation, batch), 0).sum()


def row_divisors(aggregation: Aggregation, batch: TokenBatch) -> Tensor:
    """Return the denominator of each row's token losses: [B]. For loss terms that are computed elsewhere.

    Raises ValueError as `aggregate` does.
    """
    divisors = _divisors(batch.mask.bool(), aggregation, batch)
    return torch.as_tensor(divisors, dtype=torch.float32, device=batch.mask.device).flatten().expand(len(batch.mask))


def masked(mask: Tensor, tensor: Tensor) -> Tensor:
    """Set the tensor to 0 outside the bool mask and convert half precision to float32. Keeps the gradient."""
    # `where` instead of a product with the mask, because 0 x NaN is NaN.
    return torch.where(mask, tensor.to(torch.promote_types(tensor.dtype, torch.float32)), 0)


def _divisors(mask: Tensor, aggregation: Aggregation, batch: TokenBatch) -> Tensor | int:
    """Return the denominators of token losses: [B, 1], or one number for all rows. mask: the batch's, as bool."""
    lengths = mask.sum(1, keepdim=True)
    # A row without tokens adds 0 to the sum, but 0 / 0 would make its gradient NaN, even under the mask.
    weight, rows = AGGREGATIONS[aggregation], lengths.clamp(min=1)
    divisors: Tensor | int = weight.divisor(lambda name: _count(name, batch, lengths), rows)
    return divisors


def _count(name: Count, batch: TokenBatch, lengths: Tensor) -> Tensor | int:
    """Return a count over the whole optimiser step, at least 1, for all rows or for each [B, 1]."""
    if name == "micro_batch_tokens":
        return lengths.sum().clamp(min=1)
    if name == "limit":
        if batch.max_completion_tokens is None:
            raise InvalidError("algorithms.limit_missing")
        return batch.max_completion_tokens
    if batch.step is not None:
        in_step, field = (batch.step, f"step.{name}") if name != "group_tokens" else (batch, name)
        count: Tensor | int | None = getattr(in_step, name)
        if count is None:
            raise InvalidError("algorithms.count_missing", name=name, field=field)
        return count if isinstance(count, int) else count[:, None].clamp(min=1)
    match name:
        case "micro_batches":
            return 1
        case "tokens":
            return lengths.sum().clamp(min=1)
        case "sequences":
            return max(1, len(lengths))  # 1 for a step without rows: there is nothing to divide
    if batch.groups is None:
        raise InvalidError("algorithms.groups_missing")
    names, group = torch.unique(batch.groups, return_inverse=True)
    if name == "groups":
        return len(names)
    return torch.zeros_like(lengths).index_add(0, group, lengths)[group].clamp(min=1)


def _needed(name: str, tensor: Tensor | None, reason: str) -> Tensor:
    if tensor is None:
        raise InvalidError("algorithms.field_missing", reason=reason, name=name)
    return tensor


def _selected(objective: Objective, batch: TokenBatch) -> Tensor | None:
    if objective.select.type == "none":
        return None
    if batch.selected is not None:
        return batch.selected
    if batch.step is None:
        return select_tokens(objective, batch.logp, batch.old_logp, batch.advantages, batch.mask, batch.entropy)
    raise InvalidError("algorithms.selection_missing", select=objective.select.type)


def _corrected(objective: Objective, batch: TokenBatch, old_logp: Tensor) -> tuple[SamplerWeights | None, Tensor]:
    correction, mask = objective.sampler_correction, batch.mask.bool()
    if isinstance(correction, NoCorrection):
        return None, old_logp
    given = _needed("sampler_logp", batch.sampler_logp, f"sampler_correction.type={correction.type}")
    return corrected(correction, old_logp, masked(mask, given.detach()), mask)


def _kl(kl: KlInLoss, batch: TokenBatch, logp: Tensor, old_logp: Tensor) -> Tensor:
    """Estimate the KL [B, T], with gradient; `logp` and `old_logp` are masked."""
    # The policy at the start of the iteration is pi_old, so `old_logp` serves as the reference.
    if kl.reference == "iteration_start":
        return kl_estimate(kl.estimator, logp, old_logp, old_logp)
    ref_logp = _needed("ref_logp", batch.ref_logp, f"kl.reference={kl.reference}")
    return kl_estimate(kl.estimator, logp, masked(batch.mask.bool(), ref_logp), old_logp)


def _squared_sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return (sum of log r over the completion)^2 / length, at each token of the completion: [B, T]."""
    # Divided by the length, so that the completion's tokens sum to the square once (Kimi k1.5).
    squares = log_ratio.sum(1, keepdim=True) ** 2
    return (squares / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(log_ratio)


def _value_trace(objective: Objective, batch: TokenBatch) -> ValueTrace | None:
    """Return the masked inputs of the value loss, or None if the loss has no value term. `values` keep the gradient."""
    if objective.baseline != "critic" or batch.values is None:
        return None
    mask = batch.mask.bool()
    old_values = _needed("old_values", batch.old_values, "the value loss")
    returns = _needed("returns", batch.returns, "the value loss")
    return ValueTrace(masked(mask, batch.values), masked(mask, old_values), masked(mask, returns))
