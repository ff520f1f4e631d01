"""The policy loss: all terms of the objective, each divided by a denominator of the whole optimiser step.

Shapes: B completions, T tokens of the longest one.
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
    """The denominators of losses: counts over a whole optimiser step, of which a batch is a part.

    Each aggregation needs one or two of them. The others may be left out.
    """

    sequences: int | None = None
    """Completions, fully masked ones included."""
    tokens: int | None = None
    """Mask-1 tokens."""
    groups: int | None = None
    """Groups, fully masked ones included."""
    micro_batches: int | None = None
    """Micro-batches that the step is split into."""


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """A micro-batch: some rows of one optimiser step, in any order. Raises ValueError for fields that do not fit.

    Entries at positions with mask 0 are never used, NaN and infinities included. A batch without `step` is a whole
    optimiser step, and its size is counted from its rows. The constructor also takes `step_sequences` and
    `step_tokens`, short for a `step` of these two counts.
    """

    logp: Tensor
    """[B, T] log-probs under the policy that is being updated, at the sampling temperature; carries the gradient."""
    old_logp: Tensor
    """[B, T] log-probs under the policy that sampled, recomputed by the trainer."""
    mask: Tensor
    """[B, T] 1 or true for tokens that enter the loss, else 0."""
    advantages: Tensor
    """[B] or [B, T], computed over the whole rollout batch."""
    ref_logp: Tensor | None = None
    """[B, T] log-probs under the reference policy of the KL penalty."""
    sampler_logp: Tensor | None = None
    """[B, T] log-probs that the sampler reported, for the sampler correction."""
    entropy: Tensor | None = None
    """[B, T] entropy over the vocabulary, in nats; with gradient if there is an entropy bonus."""
    divergence: Tensor | None = None
    """[B, T] divergence of teacher and student over the vocabulary, in nats, with gradient; for distill.where=loss."""
    selected: Tensor | None = None
    """[B, T] bool: this batch's part of the tokens that `select_tokens` chose over the whole step."""
    values: Tensor | None = None
    """[B, T] the critic's values, with gradient; None: the loss has no value term."""
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
    """The size of the optimiser step that this batch is a part of; None: it is the whole step."""
    step_sequences: InitVar[int | None] = None
    step_tokens: InitVar[int | None] = None

    def __post_init__(self, step_sequences: int | None, step_tokens: int | None) -> None:
        if step_sequences is not None or step_tokens is not None:
            if self.step is not None:
                raise InvalidError("algorithms.step_given_twice")
            # The dataclass is frozen; only its own initialisation may set a field.
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
        # Both sums in one transfer from the device.
        tokens, short_rows = map(int, torch.stack([lengths.sum(), short.sum()]).tolist())
        if step.tokens is not None and step.tokens < tokens:
            raise InvalidError("algorithms.step_too_small", name="step.tokens", count=step.tokens, here=tokens)
        if short_rows:
            raise InvalidError("algorithms.group_tokens_too_few")


class Coefficients(NamedTuple):
    """Coefficients that a controller may move from step to step."""

    entropy: float
    """Factor of the entropy bonus."""
    kl: float
    """beta of the KL penalty in the loss; without one it is not used."""


@dataclass(frozen=True)
class Loss:
    """The share of one micro-batch in the loss of its optimiser step: shares add up, in value and in gradient."""

    value: Tensor
    """Scalar; differentiable with respect to `logp`, `entropy`, `divergence` and `values` of the `TokenBatch`."""
    trace: TokenTrace
    """Detached token values, from which the metrics of any number of micro-batches are computed together."""

    def with_share(self, name: str, share: Tensor) -> Loss:
        """Return this loss plus a detached scalar term whose gradient was computed elsewhere."""
        shares = {**self.trace.shares, name: share}
        return Loss(self.value.detach() + share, replace(self.trace, shares=shares))

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics of this micro-batch alone; see `combine_metrics`."""
        return update_metrics([self.trace])


def combine_metrics(losses: Sequence[Loss], steps: int = 1) -> dict[str, float]:
    """Compute the metrics over all tokens of the micro-batches, as if they were one batch; see `update_metrics`.

    steps: the number of optimiser steps that the micro-batches make up. loss/* are means over them.
    """
    return update_metrics([loss.trace for loss in losses], steps)


def policy_loss(
    objective: Objective, batch: TokenBatch, coefficients: Coefficients | None = None, is_first: bool = False
) -> Loss:
    """Compute the objective's loss over the batch's tokens, to be minimised.

        aggregate(w policy + beta KL + distill.coef D + sequence penalty) - c mean(entropy)
            + critic.coef mean(value losses)

    Formulas and sources are given at the knobs of `Objective`. w is the sampler correction, and the policy term is that
    of the rule after `select`. Both means are over the tokens of the optimiser step, whatever the aggregation.
    Denominators are those of the whole step (`TokenBatch.step`), so the values and gradients of micro-batches sum to
    the step's, however its rows are split.

    coefficients: c and beta; None: entropy.bonus and kl.beta. is_first: this is the run's first optimiser step. Without
    `batch.values` there is no value term. Log-probs of half precision count as float32.

    Raises ValueError naming the field if the batch lacks what a term needs, and RefusedError as `token_losses` does.
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
    # Some rules clip the log-ratios of tokens before these form the ratio of the completion (gmpo). Metrics and
    # penalties take the unclipped log_ratio.
    clipped = checked(rule, "clip_log_ratios", rule.clip_log_ratios(log_ratio, advantages), log_ratio)
    ratio = importance_ratio(objective.ratio, clipped, mask)

    losses = token_losses(rule, logp, ratio, advantages, mask, is_first)
    selected = _selected(objective, batch)
    if selected is not None:
        losses = selected_losses(objective.select, losses, selected, log_ratio)
    if weights is not None:
        # On the policy term alone, as in TRL and verl: the KL and the other terms below are not weighted.
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
        # As in TRL. verl aggregates the bonus as it does the policy term, so that lengths change its size.
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
    """Return the names of the metrics that an objective's updates have if there is a token.

    kl/*_ref are among them if its KL penalty needs log-probs of a reference, and loss/entropy if it can have a bonus.
    """
    # Taken from a real loss, so no list can get stale. Its batch of one token has all that a term could need.
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
    """Return this batch's share [] in the step's loss, from the losses of its tokens [B, T].

    Shares add up to the loss of the step, however its rows are split into micro-batches, unless the aggregation itself
    depends on the split. A fully masked completion, group or micro-batch adds nothing to the sum. It counts
    in the denominator over its kind and not in those over tokens (as in TRL and in verl's engines).

    Raises ValueError if the batch lacks the aggregation's denominator.
    """
    mask = batch.mask.bool()
    return torch.where(mask, losses / _divisors(mask, aggregation, batch), 0).sum()


def row_divisors(aggregation: Aggregation, batch: TokenBatch) -> Tensor:
    """Return the denominator of each row's token losses [B], for terms of completions that are added to the loss.

    Raises ValueError as `aggregate` does.
    """
    divisors = _divisors(batch.mask.bool(), aggregation, batch)
    return torch.as_tensor(divisors, dtype=torch.float32, device=batch.mask.device).flatten().expand(len(batch.mask))


def masked(mask: Tensor, tensor: Tensor) -> Tensor:
    """Return the tensor inside the mask (bool, of its shape) and 0 outside, with gradient; in float32 at least."""
    # `where` instead of a product with the mask, which would keep NaN and infinities: 0 x NaN is NaN.
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
    # The policy at the start of the iteration is pi_old, so it needs no log-probs of a reference.
    if kl.reference == "iteration_start":
        return kl_estimate(kl.estimator, logp, old_logp, old_logp)
    ref_logp = _needed("ref_logp", batch.ref_logp, f"kl.reference={kl.reference}")
    return kl_estimate(kl.estimator, logp, masked(batch.mask.bool(), ref_logp), old_logp)


def _squared_sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return (sum over the completion's tokens of log r)^2 / their number, at each of them: [B, T]."""
    # Divided by the length, so that the sum over the completion's tokens is the square once (Kimi k1.5).
    squares = log_ratio.sum(1, keepdim=True) ** 2
    return (squares / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(log_ratio)


def _value_trace(objective: Objective, batch: TokenBatch) -> ValueTrace | None:
    """Return the masked inputs of the value loss, the values with gradient; None without a value term."""
    if objective.baseline != "critic" or batch.values is None:
        return None
    mask = batch.mask.bool()
    old_values = _needed("old_values", batch.old_values, "the value loss")
    returns = _needed("returns", batch.returns, "the value loss")
    return ValueTrace(masked(mask, batch.values), masked(mask, old_values), masked(mask, returns))
