"""Pass@k training (2508.10751): the best of k completions counts, so each completion earns what its sets of k earn.

A set is any k of a group's n completions, and its reward is the largest of theirs. A completion's value is the mean
over the C(n-1, k-1) sets that contain it. No set needs to be sampled: the probabilities have a closed form. Sort the
completions by reward and number them from 0. A set that contains completion j has it as its best with probability
C(j, k-1) / C(n-1, k-1). A set that contains a given lower completion has j as its best with probability
C(j-1, k-2) / C(n-1, k-1). For rewards of 0 and 1 this is the paper's analytical derivation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SetRewards:
    """The rewards of sets of k in each row's group, above the group's lowest reward; 0 in a group of k or fewer."""

    values: Tensor
    """[N] mean over the sets that contain the row."""
    variance: Tensor
    """[N] variance over all sets of the group, with divisor (number of sets - ddof)."""

    @classmethod
    def of(cls, rewards: Tensor, scored: Tensor, groups: Tensor, k: int, ddof: int) -> SetRewards:
        """Compute the set rewards of N completions.

        rewards [N]. scored [N] bool: the others belong to no set and get 0. groups [N] int64, from 0. k: at least 2.
        """
        # Two stable sorts, the minor key first: rows by group, and within a group by reward.
        rows = scored.nonzero().flatten()
        rows = rows[rewards[rows].argsort(stable=True)]
        rows = rows[groups[rows].argsort(stable=True)]
        _, group, sizes = torch.unique_consecutive(groups[rows], return_inverse=True, return_counts=True)
        starts, n = (sizes.cumsum(0) - sizes)[group], sizes[group]
        place = torch.arange(len(rows), device=rows.device) - starts
        # Values below are differences of running sums, hence float64. Rewards count from the lowest of the group, so
        # that a group of equal rewards gives exactly 0.
        ordered = rewards[rows].double()
        raised = ordered - ordered[starts]

        is_best = _share_of_sets(place, n - 1, k - 1)
        # C(n-1, k-1) = C(n-1, k-2) (n - k + 1) / (k - 1).
        beats_lower = _share_of_sets(place - 1, n - 1, k - 2) * (k - 1) / (n - k + 1).clamp(min=1)
        # The sum over the completions above is a difference of running sums: up to the group's last minus up to here.
        # The running sum goes on from one group to the next, but the earlier groups cancel.
        up_to = (beats_lower * raised).cumsum(0)
        values = is_best * raised + up_to[starts + n - 1] - up_to

        of_any_set = is_best * k / n
        mean = _sums(of_any_set * raised, group)
        spread = _sums(of_any_set * (raised - mean) ** 2, group)
        # spread has the divisor C = C(n, k), the number of sets. Division by 1 - ddof / C makes it C - ddof.
        one_set = _share_of_sets(torch.full_like(n, k), n, k)  # 1 / C(n, k)
        variance = spread / (1 - ddof * one_set)

        def placed(found: Tensor) -> Tensor:
            # A group of k has one set and a smaller one none: nothing to compare, and the formulas divide by 0.
            return torch.zeros_like(rewards).index_copy(0, rows, torch.where(n > k, found, 0).to(rewards.dtype))

        return cls(placed(values), placed(variance))


def _share_of_sets(below: Tensor, others: Tensor, size: int) -> Tensor:
    """Return C(below, size) / C(others, size): the chance that `size` of the others all come from those below."""
    # A product of ratios, as the binomials themselves overflow in large groups.
    share = torch.ones_like(below, dtype=torch.float64)
    for taken in range(size):
        share = share * (below - taken).clamp(min=0) / (others - taken).clamp(min=1)
    return share


def _sums(values: Tensor, group: Tensor) -> Tensor:
    return torch.zeros_like(values).index_add(0, group, values)[group]
