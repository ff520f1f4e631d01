"""Advantages: how much better each completion did than expected."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.objective import Objective


@torch.no_grad()
def advantages(objective: Objective, rewards: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Advantage of every token [B, T]: (reward - baseline) / scale of its completion, 0 where mask is 0.

    rewards [B]; groups [B] integers, equal for completions of one prompt, in any order and number; mask [B, T].
    Give the whole rollout batch: batch statistics are over these rows. Sources at `Objective`'s knobs.

    Defined corner cases:
    * a NaN reward (could not be scored) is left out of every baseline and std; its row gets 0;
    * a group of equal rewards, so also one of a single completion, gets exactly 0 from every group baseline, also after
      group_std and batch_std; whiten_tokens shifts it by the mean over all tokens, as its source does;
    * a fully masked row counts with its reward in baselines and stds (not where lengths weigh) and gets 0.

    Raises ValueError for shapes that do not fit and for infinite rewards.
    """
    _check(rewards, groups, mask)
    if not rewards.is_floating_point():
        rewards = rewards.to(torch.get_default_dtype())
    mask = mask.bool()
    scored = ~rewards.isnan()
    rewards = torch.where(scored, rewards, 0)
    count = scored.to(rewards.dtype)
    length = mask.sum(1) * count
    group = torch.unique(groups, return_inverse=True)[1]
    batch = torch.zeros_like(group)

    match objective.baseline:
        case "none":
            centred = rewards
        case "batch_mean":
            centred = _deviations(rewards, count, batch)
        case "group_mean":
            centred = _deviations(rewards, count, group)
        case "leave_one_out":
            # R - (S - R) / (n - 1) = n / (n - 1) (R - S / n)
            n = _sums(count, group)
            centred = _deviations(rewards, count, group) * n / (n - 1).clamp(min=1)
        case "length_weighted":
            centred = _deviations(rewards, length, group)

    ddof, eps = objective.scale_ddof, objective.scale_eps
    match objective.scale:
        case "none":
            scaled = centred
        case "group_std":
            scaled = centred / (_variance(rewards, count, group, ddof).sqrt() + eps)
        case "batch_std":
            scaled = centred / (_variance(rewards, count, batch, ddof).sqrt() + eps)
        case "whiten_tokens":
            # All tokens of a completion have one value, so statistics over tokens are weighted by length.
            variance = _variance(centred, length, batch, ddof)
            scaled = _deviations(centred, length, batch) / (variance + eps).sqrt()

    return torch.where(mask & scored[:, None], scaled[:, None], 0)


def _deviations(values: Tensor, weights: Tensor, segments: Tensor) -> Tensor:
    """[B] each value minus its segment's weighted mean; exactly 0 throughout a segment of equal values."""
    # Means of equal floats are not always exact; means of zeros are.
    counted = torch.where(weights > 0, values, torch.inf)
    lowest = torch.full_like(values, torch.inf).scatter_reduce(0, segments, counted, "amin")[segments]
    raised = values - torch.where(lowest.isinf(), 0, lowest)
    return raised - _sums(weights * raised, segments) / _sums(weights, segments).clamp(min=1)


def _variance(values: Tensor, weights: Tensor, segments: Tensor, ddof: int) -> Tensor:
    """[B] variance of each value's segment, with divisor (sum of weights - ddof); 0 for a single value."""
    squares = weights * _deviations(values, weights, segments) ** 2
    return _sums(squares, segments) / (_sums(weights, segments) - ddof).clamp(min=1)


def _sums(values: Tensor, segments: Tensor) -> Tensor:
    """[B] the sum over each row's segment; `segments` [B] are numbers below B."""
    return torch.zeros_like(values).index_add(0, segments, values)[segments]


def _check(rewards: Tensor, groups: Tensor, mask: Tensor) -> None:
    if rewards.ndim != 1:
        raise ValueError(f"rewards has shape {list(rewards.shape)}; it must be [B], one for each completion")
    B = rewards.shape[0]
    if groups.shape != (B,):
        raise ValueError(f"groups has shape {list(groups.shape)}; it must be that of rewards, {[B]}")
    if mask.ndim != 2 or mask.shape[0] != B:
        raise ValueError(f"mask has shape {list(mask.shape)}; it must be [{B}, T], a row for each reward")
    if rewards.isinf().any():
        rows = rewards.isinf().nonzero().flatten().tolist()
        raise ValueError(f"infinite rewards in rows {rows}; give a finite reward, or NaN for what could not be scored")
