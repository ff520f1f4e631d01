"""The preference loss: the link's loss of every pair, plus the negative log-likelihood of the chosen completions.

Each loss records a `PairTrace`. From the traces of an update, its metrics are computed: how far the chosen and the
rejected completions have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from algorithms.loss import masked
from algorithms.preference.links import (
    LogRatios,
    Sides,
    completion_logps,
    log_ratios,
    pair_losses,
    token_means,
    token_sums,
)
from algorithms.preference.objective import PreferenceObjective, couples_pairs
from harness.errors import InvalidError

TIE = 1e-4
"""A smaller margin counts as a tie. Before the first step the policy is its own reference, so margins are rounding."""


@dataclass(frozen=True, eq=False)
class PairTrace:
    """Detached values of a micro-batch's P pairs."""

    objective: PreferenceObjective
    log_ratios: Sides
    """[P] the link's inputs: log-ratios to the reference, or log-probs if there is no reference."""
    logp_sums: Sides
    """[P] sum of each completion's token log-probs, whatever the knob `logp` is."""
    logp_means: Sides
    """[P] mean of each completion's token log-probs."""
    lengths_tokens: Sides
    """[P] number of each completion's tokens in the loss."""
    zero_point: Tensor | None
    """KTO's z in nats; None if the link is not kto."""
    zero_point_in_batch: bool
    """True if z was estimated from these pairs, because no `kl_reference` was given."""
    shares: Mapping[str, Tensor]
    """This micro-batch's contribution to each term of the optimiser step's loss, as scalars."""


@dataclass(frozen=True)
class PreferenceLoss:
    """One micro-batch's share of its optimiser step's loss. The shares sum to the step's value and gradient."""

    value: Tensor
    """Scalar; differentiable with respect to the policy's log-probs."""
    trace: PairTrace
    """Detached values of pairs, from which metrics are computed over one or several micro-batches."""

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of this micro-batch alone; see `pair_metrics`."""
        return pair_metrics([self.trace])


def combine_preference_metrics(losses: Sequence[PreferenceLoss], steps: int = 1) -> dict[str, float]:
    """Compute the metrics of several micro-batches as if they were one batch; see `pair_metrics`.

    steps: the number of optimiser steps that the micro-batches form. The loss/* metrics are means over these steps.
    """
    return pair_metrics([loss.trace for loss in losses], steps)


def preference_loss(
    objective: PreferenceObjective,
    chosen_logp: Tensor,
    rejected_logp: Tensor,
    chosen_mask: Tensor,
    rejected_mask: Tensor,
    ref_chosen_logp: Tensor | None = None,
    ref_rejected_logp: Tensor | None = None,
    kl_reference: Tensor | None = None,
    *,
    step_pairs: int | None = None,
    step_chosen_tokens: int | None = None,
) -> PreferenceLoss:
    """Compute the objective's loss over P pairs, to be minimised.

        1 / step_pairs  sum over pairs of weight x link(c, r)  +  nll_coef / step_chosen_tokens  sum of -log pi(chosen)

    The knobs of `PreferenceObjective` give the formulas and sources.

    * chosen_logp, rejected_logp [P, T]: log-probs of tokens under the policy, with gradient. T may differ between the
      two sides. Half precision is converted to float32.
    * chosen_mask, rejected_mask [P, T]: 1 or true for tokens that count. Entries where the mask is 0 are ignored, even
      if they are NaN or infinite.
    * ref_chosen_logp, ref_rejected_logp [P, T]: log-probs under `objective.reference`, detached here. Ignored if the
      objective has no reference.
    * kl_reference []: KTO's z, the KL of the policy from the reference in nats, estimated on completions paired with
      the prompts of others (2402.01306, section 4). It is detached and clamped to at least 0. Only link=kto uses it. If
      it is None, the mean log-ratio of all these completions is used and reported as kl/zero_point_in_batch.
    * step_pairs, step_chosen_tokens: number of pairs and of chosen tokens in the complete optimiser step. With them,
      the values and gradients of micro-batches sum to the step's, however its pairs are split. If they are None, these
      pairs are the complete step.

    Raises ValueError, naming the argument, if tensors do not fit together, a completion has no tokens, the reference's
    log-probs are missing, or the objective needs the complete step and these pairs are only a part.
    """
    policy = Sides(chosen_logp, rejected_logp)
    masks = _masks(policy, Sides(chosen_mask, rejected_mask))
    logps = Sides(*(masked(mask, logp) for mask, logp in zip(masks, policy, strict=True)))
    if step_pairs is not None and len(chosen_logp) < step_pairs:
        _check_part_of_step(objective, kl_reference, f"{len(chosen_logp)} of the {step_pairs} pairs")
    chosen_tokens = int(masks.chosen.sum())
    step_pairs, step_chosen_tokens = _step(objective, len(chosen_logp), chosen_tokens, step_pairs, step_chosen_tokens)

    reference = _reference(objective, masks, logps, ref_chosen_logp, ref_rejected_logp)
    ratios = log_ratios(objective, completion_logps(objective, logps, masks), reference)
    means = token_means(logps, masks)
    zero_point = _zero_point(kl_reference, ratios)
    losses = pair_losses(objective, ratios, zero_point)
    if objective.weighting == "wpo":
        # A weight without gradient, as in TRL.
        losses = losses * (means.chosen + means.rejected).detach().exp()

    shares = {"preference": losses.sum() / step_pairs}
    if objective.nll_coef > 0:
        shares["nll"] = -objective.nll_coef * logps.chosen.sum() / step_chosen_tokens
    return PreferenceLoss(
        value=torch.stack(list(shares.values())).sum(),
        trace=PairTrace(
            objective=objective,
            log_ratios=_detached(Sides(ratios.chosen, ratios.rejected)),
            logp_sums=_detached(token_sums(logps)),
            logp_means=_detached(means),
            lengths_tokens=Sides(masks.chosen.sum(1), masks.rejected.sum(1)),
            zero_point=zero_point if objective.link == "kto" else None,
            zero_point_in_batch=kl_reference is None,
            shares={name: share.detach() for name, share in shares.items()},
        ),
    )


def preference_metric_names(objective: PreferenceObjective) -> tuple[str, ...]:
    """Return the names of all metrics that an update with this objective reports if it has at least one pair.

    With link=kto, the names are those of a loss to which kl_reference is passed.
    """
    # The names come from a real loss on one pair, so they cannot get stale.
    logp, mask = torch.full((1, 1), -1.0), torch.ones(1, 1)
    return tuple(preference_loss(objective, logp, logp, mask, mask, logp, logp, torch.zeros(())).metrics)


def pair_metrics(traces: Sequence[PairTrace], steps: int = 1) -> dict[str, float]:
    """Compute the metrics over all pairs of the traces. Returns an empty dict if there are no pairs.

    All traces must come from the same objective.

    * loss/preference, loss/nll: the terms that add up to the loss, as means over `steps` optimiser steps. loss/nll
      includes its coefficient. It exists only if nll_coef is above 0.
    * rewards/{chosen,rejected}: mean of beta x log-ratio, DPO's implicit reward (2305.18290, eq. 5).
    * rewards/margin: mean of the difference between the two.
    * rewards/accuracy: fraction of pairs with a positive margin. A margin within TIE of 0, as all are before the first
      step, counts as 1/2.
    * logps/{chosen,rejected}_sum: mean log-prob of a completion.
    * logps/{chosen,rejected}_mean: mean over completions of the mean token log-prob. Watch both sides, because the
      usual failure is that both fall.
    * len/{chosen,rejected}: mean number of tokens.
    * kl/zero_point: KTO's z in nats. If it was estimated from the pairs themselves, the name is kl/zero_point_in_batch.
    """
    traces = [trace for trace in traces if len(trace.log_ratios.chosen)]
    if not traces:
        return {}
    objective = traces[0].objective
    metrics = {
        f"loss/{name}": torch.stack([trace.shares[name] for trace in traces]).sum() / steps for name in traces[0].shares
    }
    chosen, rejected = (objective.beta * side for side in _gathered(traces, lambda trace: trace.log_ratios))
    margin = chosen - rejected
    metrics |= {
        "rewards/chosen": chosen.mean(),
        "rewards/rejected": rejected.mean(),
        "rewards/margin": margin.mean(),
        "rewards/accuracy": (margin.sign().masked_fill(margin.abs() < TIE, 0) + 1).mean() / 2,
    }
    sums, means = (
        _gathered(traces, lambda trace: trace.logp_sums),
        _gathered(traces, lambda trace: trace.logp_means),
    )
    lengths_tokens = _gathered(traces, lambda trace: trace.lengths_tokens)
    metrics |= {
        "logps/chosen_sum": sums.chosen.mean(),
        "logps/chosen_mean": means.chosen.mean(),
        "logps/rejected_sum": sums.rejected.mean(),
        "logps/rejected_mean": means.rejected.mean(),
        "len/chosen": lengths_tokens.chosen.to(margin.dtype).mean(),
        "len/rejected": lengths_tokens.rejected.to(margin.dtype).mean(),
    }
    zero_points = [trace.zero_point for trace in traces if trace.zero_point is not None]
    if zero_points:
        pairs = torch.tensor([len(trace.log_ratios.chosen) for trace in traces]).to(margin)
        name = "kl/zero_point_in_batch" if traces[0].zero_point_in_batch else "kl/zero_point"
        # Weighted by pairs, because each z was used for all pairs of its micro-batch.
        metrics[name] = torch.stack(zero_points).to(margin) @ pairs / pairs.sum()
    # Stacked, so that one transfer from the device fetches all metrics.
    numbers = torch.stack([value.to(margin) for value in metrics.values()]).tolist()
    return dict(zip(metrics, numbers, strict=True))


def _masks(policy: Sides, masks: Sides) -> Sides:
    """Return the masks [P, T] as bool. Raises ValueError if they do not fit the log-probs or a row has no token."""
    for name, logp, mask in zip(policy._fields, policy, masks, strict=True):
        if logp.ndim != 2:
            raise InvalidError("algorithms.shape", name=f"{name}_logp", shape=list(logp.shape), needed="[P, T]")
        _check_shape(f"{name}_mask", mask, f"{name}_logp", logp)
        if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
            raise InvalidError("algorithms.preference.mask_not_binary", name=f"{name}_mask")
        empty = [row for row, has_token in enumerate(mask.bool().any(1).tolist()) if not has_token]
        if empty:
            rows = ", ".join(map(str, empty))
            raise InvalidError("algorithms.preference.empty_completions", name=f"{name}_mask", rows=rows)
    if len(policy.chosen) != len(policy.rejected):
        chosen, rejected = map(len, policy)
        raise InvalidError("algorithms.preference.sides_unequal", chosen=chosen, rejected=rejected)
    return Sides(masks.chosen.bool(), masks.rejected.bool())


def _reference(
    objective: PreferenceObjective, masks: Sides, logps: Sides, ref_chosen: Tensor | None, ref_rejected: Tensor | None
) -> Sides:
    """Return log-probs of completions under the reference, [P] and [P], or zeros if the objective has no reference."""
    if objective.reference == "none":
        zeros = logps.chosen.new_zeros(len(logps.chosen))
        return Sides(zeros, zeros)
    of_tokens = []
    for name, logp, mask in zip(logps._fields, (ref_chosen, ref_rejected), masks, strict=True):
        if logp is None:
            raise InvalidError(
                "algorithms.preference.reference_missing", name=f"ref_{name}_logp", reference=objective.reference
            )
        _check_shape(f"ref_{name}_logp", logp, f"{name}_logp", mask)
        of_tokens.append(masked(mask, logp.detach()))
    return completion_logps(objective, Sides(*of_tokens), masks)


def _zero_point(kl_reference: Tensor | None, ratios: LogRatios) -> Tensor:
    """Return KTO's z [], at least 0: `kl_reference`, or if that is None, the mean log-ratio of both sides."""
    if kl_reference is None:
        kl_reference = torch.cat([ratios.chosen, ratios.rejected]).mean()
    elif kl_reference.numel() != 1:
        shape = list(kl_reference.shape)
        raise InvalidError("algorithms.shape", name="kl_reference", shape=shape, needed="a single number")
    return kl_reference.detach().reshape(()).to(ratios.chosen).clamp(min=0)


def _step(
    objective: PreferenceObjective, pairs: int, tokens: int, step_pairs: int | None, step_tokens: int | None
) -> tuple[int, int]:
    """Return the number of pairs and of chosen tokens in the optimiser step, each at least 1.

    Raises ValueError if one of the two is given without the other and both are needed, or if one is smaller than this
    micro-batch.
    """
    if step_pairs is None and step_tokens is not None:
        raise InvalidError("algorithms.preference.step_pairs_missing", tokens=step_tokens)
    if step_pairs is not None and step_tokens is None and objective.nll_coef > 0:
        nll_coef = objective.nll_coef
        raise InvalidError("algorithms.preference.step_tokens_missing", pairs=step_pairs, nll_coef=nll_coef)
    for name, of_step, here in (
        ("step_pairs", step_pairs, pairs),
        ("step_chosen_tokens", step_tokens, tokens),
    ):
        if of_step is not None and of_step < max(1, here):
            raise InvalidError("algorithms.step_too_small", name=name, count=of_step, here=here)
    return max(1, pairs if step_pairs is None else step_pairs), max(1, tokens if step_tokens is None else step_tokens)


def _check_part_of_step(objective: PreferenceObjective, kl_reference: Tensor | None, part: str) -> None:
    """Raise ValueError if these pairs are part of a step and the loss of a pair depends on the step's other pairs."""
    if couples_pairs(objective):
        raise InvalidError("algorithms.preference.sorted_in_parts", matching=objective.matching, part=part)
    if objective.link == "kto" and kl_reference is None:
        raise InvalidError("algorithms.preference.zero_point_missing", part=part)


def _check_shape(name: str, tensor: Tensor, like: str, expected: Tensor) -> None:
    if tensor.shape != expected.shape:
        needed = f"that of {like}, {list(expected.shape)}"
        raise InvalidError("algorithms.shape", name=name, shape=list(tensor.shape), needed=needed)


def _detached(sides: Sides) -> Sides:
    return Sides(sides.chosen.detach(), sides.rejected.detach())


def _gathered(traces: Sequence[PairTrace], sides_of: Callable[[PairTrace], Sides]) -> Sides:
    """Concatenate one tensor of every trace, separately for each side."""
    sides = [sides_of(trace) for trace in traces]
    return Sides(torch.cat([side.chosen for side in sides]), torch.cat([side.rejected for side in sides]))
