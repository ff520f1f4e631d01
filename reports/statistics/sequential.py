"""Several looks at growing data: intervals that keep their level over all looks.

Suppose that a design is judged after 6 seeds, and again after 12, 18 and 24 if it is still undecided. It then errs more
often than with a single look: a repeated 95% t interval misses in 13% of such designs. Repeated confidence intervals
(Jennison & Turnbull 1989, J. R. Stat. Soc. B 51:305) give each look a share of alpha and widen its interval
accordingly. The chance that the interval of *any* look misses the true difference then stays at alpha. `better`,
`worse` and `equivalent` are read off the same intervals, so all of them keep their level, whatever the stopping rule.

Textbook boundaries assume known variances, so they are too lenient for t statistics of a few seeds. Here the level of
each look comes from simulating the paired t statistic itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from reports.statistics.means import FloatArray, require_level

PATHS = 1_000_000
"""The number of simulated sequences of looks. If a look spends 0.2% of them, that share is known to a relative 2%."""
CAUTION_SDS = 2.0
"""How many standard errors of the simulation are left unspent."""
SPENDING_GAMMA = -2.0
"""Hwang, Shih & DeCani's parameter: 1 spends like Pocock's boundary, -4 like O'Brien & Fleming's. With -2, a clear
effect stops a design nearly as early as with 1, but the last look keeps most of the power that 1 gives away
(`benchmarks/results/sequential.md`).
"""


def planned_shares(seeds: Sequence[int], gamma: float = SPENDING_GAMMA) -> tuple[float, ...]:
    """Return the share of alpha that each look of a design spends; the shares add up to 1.

    seeds: the number of seeds at each look.
    By time t = n_k / n_K, a design has spent (1 - exp(-gamma t)) / (1 - exp(-gamma)) of its alpha (Hwang, Shih & DeCani
    1990, Statistics in Medicine 9:1439).
    """
    spent = [math.expm1(-gamma * n / seeds[-1]) / math.expm1(-gamma) for n in seeds]
    return tuple(np.diff([0.0, *spent]).tolist())


def unplanned_share(look: int) -> float:
    """Return the share of alpha that the `look`-th look (from 1) gets if the number of looks was not fixed beforehand.

    It is half of the remaining alpha, so even endlessly many looks spend no more than all of alpha.
    """
    return 0.5**look


@cache
def look_alphas(seeds: tuple[int, ...], spent: tuple[float, ...]) -> tuple[float, ...]:
    """Return the two-sided alpha of the paired t interval at each look.

    seeds: the number of pairs at each look, increasing, at least 2.
    spent: for each look, the chance that its interval is the first to miss. Their sum is the chance that any interval
    misses.

    The alphas come from `PATHS` simulated sequences of the t statistic of normal differences. The simulation has a
    fixed seed, and `CAUTION_SDS` keeps the alphas on the safe side. None is below its share of `spent`, which is always
    valid (Bonferroni). Raises ValueError if the looks do not increase or a share is not a valid level.
    """
    if len(seeds) != len(spent) or min(seeds, default=0) < 2 or min(np.diff(seeds), default=1) < 1:
        raise ValueError(f"looks at {seeds} pairs spend {spent}: give growing numbers, at least 2, and a share each")
    for share in (*spent, sum(spent)):
        require_level(share)
    if len(seeds) == 1:
        return spent
    from scipy.special import stdtr, stdtrit

    alphas: list[float] = []
    inside = np.ones(PATHS, dtype=bool)
    # `inside` marks the sequences whose intervals have not missed at any earlier look. Each look's critical value lets
    # `most` of them miss now.
    for n, share, squared in zip(seeds, spent, _squared_t(seeds), strict=True):
        alpha, still_inside = share, squared[inside]
        expected = share * PATHS
        most = math.floor(expected - CAUTION_SDS * math.sqrt(expected))
        if alphas and most > 0:
            critical = float(np.partition(still_inside, -most - 1)[-most - 1])
            alpha = max(share, float(2 * stdtr(n - 1, -math.sqrt(critical))))
        # The mask narrows itself: the right-hand side has one entry for each True on the left.
        inside[inside] = still_inside <= stdtrit(n - 1, 1 - alpha / 2) ** 2
        alphas.append(alpha)
    return tuple(alphas)


def _squared_t(seeds: Sequence[int], seed: int = 0) -> list[FloatArray]:
    """Simulate the squared paired t statistic [PATHS] at each look, for differences with mean 0.

    The sequences grow block by block. The mean and the sum of squares of a block are independent, so they are drawn
    directly instead of the individual differences.
    """
    random = np.random.default_rng(seed)
    mean, squares, n = np.zeros(PATHS), np.zeros(PATHS), 0
    found = []
    for look in seeds:
        new = look - n
        shift = random.standard_normal(PATHS) / math.sqrt(new) - mean
        # Two samples merge by their sizes, means and sums of squares: first the squares between the old pairs and the
        # new block, then those within the block.
        squares += shift**2 * (n * new / look)
        if new > 1:
            squares += random.chisquare(new - 1, PATHS)
        mean += shift * (new / look)
        n = look
        found.append(n * (n - 1) * mean**2 / squares)
    return found
