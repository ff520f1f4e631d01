"""Metrics of an update on pairs: how far chosen and rejected have moved, together and apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.preference.objective import PreferenceObjective
from algorithms.preference.scores import Sides

TIE = 1e-4
"""Margins below it are the rounding of log-probs: before the first step the policy is its own reference."""


@dataclass(frozen=True, eq=False)
class PairTrace:
    """Detached values of a micro-batch's P pairs."""

    objective: PreferenceObjective
    log_ratios: Sides
    """[P] what the link sees: log-ratios to the reference, or log-probs where there is none."""
    logp_sums: Sides
    """[P] log-probs of whole completions, whatever `logp` is."""
    logp_means: Sides
    """[P] means of token log-probs."""
    lengths_tokens: Sides
    """[P] tokens in the loss."""
    zero_point: Tensor | None
    """KTO's z in nats; none with another link."""
    zero_point_in_batch: bool
    """Whether z is the estimate from these pairs, instead of the given one."""
    shares: Mapping[str, Tensor]
    """The scalar share of each term in the loss of the optimiser step."""


def pair_metrics(traces: Sequence[PairTrace], steps: int = 1) -> dict[str, float]:
    """Metrics over all pairs of the traces, which share one objective; empty if there is no pair.

    * loss/preference, loss/nll: the terms that add up to the loss, means over `steps` optimiser steps; nll only with
      nll_coef on, and with it;
    * rewards/{chosen,rejected,margin}: means of beta x the log-ratio that the link sees (the implicit reward of DPO,
      2305.18290, eq. 5), and of the difference; rewards/accuracy: fraction of pairs with a positive difference, one
      within TIE of 0 counting half, as before the first step;
    * logps/{chosen,rejected}_{sum,mean}: log-probs of completions, and means of their tokens'. Watch both sides: the
      usual failure is that both fall;
    * len/{chosen,rejected}: mean tokens;
    * kl/zero_point: KTO's z, in nats; kl/zero_point_in_batch where it is the estimate from the pairs themselves.
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
        metrics[name] = torch.stack(zero_points).to(margin) @ pairs / pairs.sum()
    # One transfer from the device for all of them.
    numbers = torch.stack([value.to(margin) for value in metrics.values()]).tolist()
    return dict(zip(metrics, numbers, strict=True))


def _gathered(traces: Sequence[PairTrace], sides_of: Callable[[PairTrace], Sides]) -> Sides:
    """One tensor of all traces for each side, over their pairs."""
    sides = [sides_of(trace) for trace in traces]
    return Sides(torch.cat([side.chosen for side in sides]), torch.cat([side.rejected for side in sides]))
