"""Diagnostics of a policy update: how far the policy moved since sampling, and which tokens the objective bounded.

Each loss records a `TokenTrace`. The metrics of an update are computed from the traces of all its micro-batches.
`treatment` tells for every token whether it was clipped or left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.critic import value_metrics
from algorithms.objective import Objective
from algorithms.rules import bounded_exp, checked, kl_means
from algorithms.sampler_correction import SamplerWeights
from algorithms.selection import ClipCov, TopEntropy
from harness.errors import InvalidError


class ValueTrace(NamedTuple):
    """The inputs of a micro-batch's value loss, each [B, T]."""

    values: Tensor
    old_values: Tensor
    returns: Tensor


class Treatment(NamedTuple):
    """The tokens that an objective clipped or left out, bool [B, T]. No token is in both, none is outside the mask."""

    clipped: Tensor
    """Tokens whose ratio is beyond a bound of the rule. With ppo_clip and gmpo, only the bound in the direction of the
    advantage counts, and the token has no gradient. With cispo both bounds count, and the token keeps a bounded weight.
    """
    masked: Tensor
    """Tokens removed from the policy loss by the rule (`rule.mask`), by `select` (clip_cov, top_entropy), or by a
    sampler correction with weight 0.
    """


@dataclass(frozen=True, eq=False)
class TokenTrace:
    """Detached per-token values of a micro-batch, each [B, T]; entries outside the mask are ignored."""

    objective: Objective
    mask: Tensor
    """Bool."""
    log_ratio: Tensor
    """log pi - log pi_old of the token, 0 outside the mask; pi_sampler replaces pi_old under in_ratio correction."""
    ratio: Tensor
    """The ratio that the rule bounds (`Rule.bounded_ratio`): the token's or its completion's."""
    advantages: Tensor
    ref_log_ratio: Tensor | None
    """log pi - log pi_ref of the token; None without a reference."""
    selected: Tensor | None
    """Bool: the tokens that `select` chose; None if the objective selects no tokens."""
    weights: SamplerWeights | None
    """The weights of the sampler correction; None if the objective has no correction or its type is in_ratio."""
    divergence: Tensor | None
    """Divergence between teacher and student at each token, in nats; None unless distill.where=loss."""
    values: ValueTrace | None
    """The inputs of the value loss; None if the loss has no value term."""
    shares: Mapping[str, Tensor]
    """This micro-batch's contribution to each term of the optimiser step's loss, as scalars."""


def update_metrics(traces: Sequence[TokenTrace], steps: int = 1) -> dict[str, float]:
    """Compute the metrics over all tokens of the traces. Returns an empty dict if there are no tokens.

    All traces must come from the same objective.

    * ratio/mean, ratio/p99 (nearest rank), ratio/max: token ratios exp(log pi - log pi_old), whatever ratio the
      objective uses, so that arms with different ratios can be compared. With sampler_correction.type=in_ratio,
      log pi_sampler takes the place of log pi_old, here and in kl/*_old.
    * ratio_seq/mean, ratio_seq/max: ratios of completions, the products over their tokens.
    * kl/{k1,k2,k3}_old: estimates of KL(pi_old || pi) from its samples, the means of -log r, (log r)^2 / 2 and
      r - 1 - log r (Schulman 2020, "Approximating KL divergence").
    * kl/{k1,k2,k3}_ref: estimates of KL(pi || pi_ref), as if the tokens had been sampled from pi. Only with a
      reference.
    * clip/{low,high}_frac_any_sign: fraction of tokens whose bounded ratio (`Rule.bounded_ratio`) is below or above the
      rule's bounds. Only rules with bounds have clip metrics. cispo bounds the weight, gmpo the ratios of tokens.
    * clip/{low,high}_frac_sign_aware: fraction of tokens on which that bound has an effect (low: A < 0, high: A > 0).
    * clip/dual_frac: fraction of tokens with A < 0 and r > dual_clip. Only with dual_clip on. Rules may add their own
      clip metrics.
    * select/frac: fraction of tokens that `select` chose. Only if the objective selects tokens.
    * sampler/weight_mean: mean weight of the sampler correction. Only if the correction has weights.
    * sampler/frac_clipped: fraction of tokens whose weight the correction bounded or whose completion it rejected. Only
      if the correction has weights.
    * teacher/divergence: mean divergence between teacher and student, in nats per token. Only with distill.where=loss.
    * value/*: see `value_metrics`. Only with a critic.
    * loss/{policy,kl,distill,sequence_penalty,entropy,value}: the active terms, which add up to the loss. Each is a
      mean over `steps` optimiser steps.
    """
    if not traces:
        return {}
    tokens = _Tokens(traces)
    if not len(tokens):
        return {}
    objective = traces[0].objective
    log_ratio = tokens.of(lambda trace: trace.log_ratio)
    # A fully masked completion has no ratio: the product over its tokens is empty, and its 1 would distort the mean.
    rows = torch.cat([trace.mask.any(1) for trace in traces])
    sequence_ratio = bounded_exp(torch.cat([trace.log_ratio.sum(1) for trace in traces])[rows])
    token_ratio = bounded_exp(log_ratio)
    metrics = {
        "ratio/mean": token_ratio.mean(),
        # `sort`, because `kthvalue` is ten times slower if most values are equal, as before the first update.
        "ratio/p99": token_ratio.sort().values[math.ceil(0.99 * token_ratio.numel()) - 1],
        "ratio/max": token_ratio.max(),
        "ratio_seq/mean": sequence_ratio.mean(),
        "ratio_seq/max": sequence_ratio.max(),
        # The tokens were sampled from pi_old, so the estimator's log-ratio is log pi_old - log pi.
        **{f"kl/{name}_old": mean for name, mean in kl_means(-log_ratio).items()},
    }
    if all(trace.ref_log_ratio is not None for trace in traces):
        ref_log_ratio = tokens.of(lambda trace: trace.ref_log_ratio)
        metrics |= {f"kl/{name}_ref": mean for name, mean in kl_means(ref_log_ratio).items()}
    metrics |= _clip_metrics(objective, tokens)
    if objective.select.type != "none":
        metrics["select/frac"] = _fraction(tokens.of(lambda trace: trace.selected))
    if traces[0].weights is not None:
        weights = tokens.of(lambda trace: trace.weights and trace.weights.weights)
        bounded = tokens.of(lambda trace: trace.weights and trace.weights.bounded)
        metrics |= {"sampler/weight_mean": weights.mean(), "sampler/frac_clipped": _fraction(bounded)}
    if objective.distill.where == "loss":
        metrics["teacher/divergence"] = tokens.of(lambda trace: trace.divergence).mean()
    for name in traces[0].shares:
        metrics[f"loss/{name}"] = torch.stack([trace.shares[name] for trace in traces]).sum() / steps
    # Stacked, so that one transfer from the device fetches all metrics.
    numbers = torch.stack([value.to(log_ratio.dtype) for value in metrics.values()]).tolist()
    return dict(zip(metrics, numbers, strict=True)) | _value_metrics(traces, tokens)


def treatment(trace: TokenTrace) -> Treatment:
    """Return which tokens of a trace the objective clipped and which it left out of the policy loss."""
    rule = trace.objective.rule
    clipped, masked = (
        checked(rule, "treatment", tokens, trace.ratio, holds_bools=True)
        for tokens in rule.treatment(trace.ratio, trace.advantages)
    )
    match trace.objective.select:
        case ClipCov():
            masked = masked | _selected(trace)
        case TopEntropy():
            masked = masked | ~_selected(trace)
    if trace.weights is not None:
        masked = masked | (trace.weights.weights == 0)
    # A token that was removed from the loss counts only as masked, even if its ratio is beyond a bound.
    return Treatment(clipped & ~masked & trace.mask, masked & trace.mask)


def _clip_metrics(objective: Objective, tokens: _Tokens) -> dict[str, Tensor]:
    ratio = tokens.of(lambda trace: trace.ratio)
    advantages = tokens.of(lambda trace: trace.advantages)
    rule = objective.rule
    found = rule.clip_metrics(ratio, advantages)
    return {
        f"clip/{name}": _fraction(checked(rule, "clip_metrics", beyond, ratio, holds_bools=True))
        for name, beyond in found.items()
    }


def _selected(trace: TokenTrace) -> Tensor:
    """Return the tokens that `select` chose. Raises ValueError if the trace does not have them."""
    if trace.selected is None:
        raise InvalidError("algorithms.trace_without_selection", select=trace.objective.select.type)
    return trace.selected


def _value_metrics(traces: Sequence[TokenTrace], tokens: _Tokens) -> dict[str, float]:
    if any(trace.values is None for trace in traces):
        return {}

    def of(index: int) -> Tensor:
        return tokens.of(lambda trace: None if trace.values is None else trace.values[index])

    return value_metrics(of(0), of(1), of(2), traces[0].objective.critic.value_clip)


class _Tokens:
    """The N mask-1 tokens of all traces. Their positions are computed once, because `nonzero` makes the host wait."""

    def __init__(self, traces: Sequence[TokenTrace]) -> None:
        self._traces = traces
        self._places = torch.cat([trace.mask.flatten() for trace in traces]).nonzero()[:, 0]

    def __len__(self) -> int:
        return len(self._places)

    def of(self, tensor_of: Callable[[TokenTrace], Tensor | None]) -> Tensor:
        """Concatenate one tensor of every trace and keep the mask-1 tokens: [N]."""
        tensors = [tensor_of(trace) for trace in self._traces]
        return torch.cat([tensor.flatten() for tensor in tensors if tensor is not None]).index_select(0, self._places)


def _fraction(tokens: Tensor) -> Tensor:
    return tokens.sum() / tokens.numel()
