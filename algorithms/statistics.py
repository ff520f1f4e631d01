"""Means and variances over segments of a batch and over its tokens, exact where all values are equal.

A segment is a set of entries that are compared with each other: a prompt's group, an optimiser step, the whole batch.
`segments` numbers them, below the number of entries.
"""

from __future__ import annotations

import torch
from torch import Tensor


def deviations(values: Tensor, weights: Tensor, segments: Tensor) -> Tensor:
    """[N] each value minus its segment's weighted mean; exactly 0 in a segment of equal values or without any weight.

    values, weights [N], segments [N] int64. Values of weight 0 do not count.
    """
    # Means of equal floats are not always exact; means of zeros are.
    counted = torch.where(weights > 0, values, torch.inf)
    lowest = torch.full_like(values, torch.inf).scatter_reduce(0, segments, counted, "amin")[segments]
    raised = torch.where(lowest.isinf(), 0, values - lowest)
    return raised - sums(weights * raised, segments) / sums(weights, segments).clamp(min=1)


def variance(values: Tensor, weights: Tensor, segments: Tensor, ddof: int) -> Tensor:
    """[N] variance of each value's segment, with divisor (sum of weights - ddof); 0 for a single value."""
    squares = weights * deviations(values, weights, segments) ** 2
    return sums(squares, segments) / (sums(weights, segments) - ddof).clamp(min=1)


def sums(values: Tensor, segments: Tensor) -> Tensor:
    """[N] the sum over each entry's segment."""
    return torch.zeros_like(values).index_add(0, segments, values)[segments]


def whitened(values: Tensor, mask: Tensor, ddof: int, eps: float) -> Tensor:
    """[B, T] (value - mean) / sqrt(variance + eps) over all tokens of the mask, 0 elsewhere; values, mask [B, T]."""
    tokens = values[mask]
    if len(tokens) == 0:
        return torch.zeros_like(values)
    raised = tokens - tokens.min()
    centred = raised - raised.mean()
    scale = (centred.square().sum() / max(1, len(tokens) - ddof) + eps).sqrt()
    return torch.zeros_like(values).masked_scatter(mask, centred / scale)
