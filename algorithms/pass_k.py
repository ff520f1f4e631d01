"""Pass@k training (2508.10751): each completion is rewarded for the best of k completions, over its sets of k.

A set is any k of a group's n completions, and its reward is the largest of the k rewards. A completion's value is the
mean reward of the C(n-1, k-1) sets that contain it. No set needs to be sampled, because the probabilities have a closed
form. Sort the completions by reward and number them from 0. Of the sets that contain completion j, j is the best in a
fraction C(j, k-1) / C(n-1, k-1). Of the sets that contain a given lower completion, j is the best in a fraction
C(j-1, k-2) / C(n-1, k-1). For rewards of 0 and 1 this is the paper's analytical derivation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SetRewards:
    """Statistics of the sets of k completions that contain each row; all are 0 for a group of k or fewer completions.

    Rewards are measured from the group's lowest.
    """

    values: Tensor
    """[N] mean over the row's sets."""
    variance: Tensor
    """[N] variance over all sets of the group, with divisor (number of sets - ddof)."""

    @classmethod
    def of(cls, rewards: Tensor, scored: Tensor, groups: Tensor, k: int, ddof: int) -> SetRewards:
        """Compute the set rewards of N completions.

        rewards [N]. groups [N] int64: numbers from 0. k: at least 2.
        scored [N] bool: unscored completions are in no set and get 0.
        """
        # Sort rows by group, and by reward within a group: two stable sorts, the minor key first.
        rows = scored.nonzero().flatten()
        rows = rows[rewards[rows].argsort(stable=True)]
        rows = rows[groups[rows].argsort(stable=True)]
        _, group, sizes = torch.unique_consecutive(groups[rows], return_inverse=True, return_counts=True)
        starts, n = (sizes.cumsum(0) - sizes)[group], sizes[group]
        place = torch.arange(len(rows), device=rows.device) - starts
        # float64, because the values below are differences of running sums. Rewards count from the group's lowest, so
        # that a group of equal rewards gives exactly 0.
        ordered = rewards[rows].double()
        raised = ordered - ordered[starts]

        is_best = _share_of_sets(place, n - 1, k - 1)
        # C(n-1, k-1) = C(n-1, k-2) (n - k + 1) / (k - 1).
        beats_lower = _share_of_sets(place - 1, n - 1, k - 2) * (k - 1) / (n - k + 1).clamp(min=1)
        # The sum over all higher completions is the running sum at the group's last row minus the one at this row. The
        # running sum continues across groups, but earlier groups cancel in the difference.
        up_to = (beats_lower * raised).cumsum(0)
        values = is_best * raised + up_to[starts + n - 1] - up_to

        of_any_set = is_best * k / n
        mean = _sums(of_any_set * raised, group)
        spread = _sums(of_any_set * (raised - mean) ** 2, group)
        # `spread` has the divisor C = C(n, k), the number of sets. Dividing by 1 - ddof / C makes it C - ddof.
        one_set = _share_of_sets(torch.full_like(n, k), n, k)  # 1 / C(n, k)
        variance = spread / (1 - ddof * one_set)

        def placed(found: Tensor) -> Tensor:
            # A group of k rows has one set, and a smaller group none. There is nothing to compare, so the result is 0.
            return torch.zeros_like(rewards).index_copy(0, rows, torch.where(n > k, found, 0).to(rewards.dtype))

        return cls(placed(values), placed(variance))


def _share_of_sets(below: Tensor, others: Tensor, size: int) -> Tensor:
    """Return C(below, size) / C(others, size): the chance that `size` of `others` completions are all `below`."""
    # A product of ratios, because the binomials themselves overflow in large groups.
    share = torch.ones_like(below, dtype=torch.float64)
    for taken in range(size):
        share = share * (below - taken).clamp(min=0) / (others - taken).clamp(min=1)
    return share


def _sums(values: Tensor, group: Tensor) -> Tensor:
    return torch.zeros_like(values).index_add(0, group, values)[group]
