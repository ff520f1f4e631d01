"""Pass@k training (2508.10751): what counts is the best of k completions, so each earns what its sets of k earn.

A set is any k of a group's n completions, and its reward is the largest of theirs. A completion's value is the mean
over the C(n-1, k-1) sets that it belongs to. Sorted by reward, from 0, the completion at place j is the best of a set
with it with probability C(j, k-1) / C(n-1, k-1), and of a set with a given lower one with C(j-1, k-2) / C(n-1, k-1), so
that no set need be drawn. Of rewards 0 and 1 this is the paper's analytical derivation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SetRewards:
    """What the sets of k of each row's group earn, above the lowest reward of the group; 0 in a group of k or fewer.

    values [N]: the mean over the sets with the row. variance [N]: over all sets, with divisor (their number - ddof).
    """

    values: Tensor
    variance: Tensor

    @classmethod
    def of(cls, rewards: Tensor, scored: Tensor, groups: Tensor, k: int, ddof: int) -> SetRewards:
        """rewards [N]; scored [N] bool: the others belong to no set and get 0; groups [N] int64, from 0; k at least
        2."""
        rows = scored.nonzero().flatten()
        rows = rows[rewards[rows].argsort(stable=True)]
        rows = rows[groups[rows].argsort(stable=True)]
        _, group, sizes = torch.unique_consecutive(groups[rows], return_inverse=True, return_counts=True)
        starts, n = (sizes.cumsum(0) - sizes)[group], sizes[group]
        place = torch.arange(len(rows), device=rows.device) - starts
        ordered = rewards[rows].double()
        raised = ordered - ordered[starts]

        is_best = _share_of_sets(place, n - 1, k - 1)
        beats_lower = _share_of_sets(place - 1, n - 1, k - 2) * (k - 1) / (n - k + 1).clamp(min=1)
        up_to = (beats_lower * raised).cumsum(0)
        values = is_best * raised + up_to[starts + n - 1] - up_to

        of_any_set = is_best * k / n
        mean = _sums(of_any_set * raised, group)
        spread = _sums(of_any_set * (raised - mean) ** 2, group)
        one_set = _share_of_sets(torch.full_like(n, k), n, k)  # 1 / C(n, k)
        variance = spread / (1 - ddof * one_set)

        def placed(found: Tensor) -> Tensor:
            return torch.zeros_like(rewards).index_copy(0, rows, torch.where(n > k, found, 0).to(rewards.dtype))

        return cls(placed(values), placed(variance))


def _share_of_sets(below: Tensor, others: Tensor, size: int) -> Tensor:
    """C(below, size) / C(others, size): the chance that so many of the others all come from those below."""
    share = torch.ones_like(below, dtype=torch.float64)
    for taken in range(size):
        share = share * (below - taken).clamp(min=0) / (others - taken).clamp(min=1)
    return share


def _sums(values: Tensor, group: Tensor) -> Tensor:
    return torch.zeros_like(values).index_add(0, group, values)[group]
