"""Sharpening or learning: pass@k of the trained policy minus that of the model before training, over k.

Training that only makes likely what the model could already do gains at k = 1 and loses at large k, where the untrained
model's variety wins (Yue et al., arXiv:2504.13837).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reports.analysis import Analysis
from reports.curves import Curve, Line, base_line_over_k, curves_over_k, mean_curve
from reports.statistics import FloatArray

_TIE_DECIMALS = 9
"""Of a gain in percentage points: rounding errors lie below, a sample more or less far above."""


@dataclass(frozen=True)
class Sharpening:
    """Gains over the model before training in percentage points, at the smallest and at the largest k evaluated.

    `crossover_k`: where the gain, once above 0, falls below 0 for the first time, and if it lies at 0 before that, the
    last such k; None if it does not fall below 0 among the k evaluated.
    `crossover_low`, `crossover_high`: the k around it at which the t interval of the gain over training seeds holds 0,
    so a confidence interval at the level of the band; None where it reaches past the k evaluated, or without a band.
    """

    n: int
    smallest_k: int
    largest_k: int
    gain_at_smallest_pp: float
    gain_at_largest_pp: float
    crossover_k: float | None
    crossover_low: float | None
    crossover_high: float | None


def gain_curves(analysis: Analysis) -> list[Curve]:
    """pass@k after minus before training over k, in percentage points; without both at two k or more, nothing."""
    before = base_line_over_k(analysis.base_metrics, "pass")
    if before is None:
        return []
    alpha = analysis.sweep.alpha
    curves = []
    for curve in curves_over_k(analysis.measurements, "pass", alpha):
        gains = [gain for line in curve.lines if len((gain := _gain(line, before)).x) > 1]
        if gains and len((mean := mean_curve(curve.arm, gains, alpha)).grid) > 1:
            curves.append(mean)
    return curves


def _gain(after: Line, before: Line) -> Line:
    k, mine, theirs = np.intersect1d(after.x, before.x, return_indices=True)
    return Line(after.seed, k, 100 * (after.y[mine] - before.y[theirs]))


def sharpening(curve: Curve) -> Sharpening:
    """Summary of one of the `gain_curves`."""
    without = Sharpening(
        n=curve.n,
        smallest_k=int(curve.grid[0]),
        largest_k=int(curve.grid[-1]),
        gain_at_smallest_pp=float(curve.mean[0]),
        gain_at_largest_pp=float(curve.mean[-1]),
        crossover_k=None,
        crossover_low=None,
        crossover_high=None,
    )
    log_k = np.log2(curve.grid)
    # What is 0 but for the order of a sum is a tie.
    mean, lower, upper = (np.round(line, _TIE_DECIMALS) for line in (curve.mean, curve.low, curve.high))
    falls = np.flatnonzero(np.maximum.accumulate(mean > 0) & (mean < 0))
    if not len(falls):
        return without
    after = int(falls[0])
    crossing = _root(log_k, mean, after)
    low = high = None
    if not np.isnan(lower).any():
        # The lower end of the band falls through 0 before the mean does, the upper end after it.
        above = np.flatnonzero((lower[:-1] > 0) & (lower[1:] <= 0))
        above = above[above < after]
        below = np.flatnonzero((upper[:-1] >= 0) & (upper[1:] < 0))
        below = below[below >= after - 1]
        low = float(2 ** _root(log_k, lower, int(above[-1]) + 1)) if len(above) else None
        high = float(2 ** _root(log_k, upper, int(below[0]) + 1)) if len(below) else None
    return replace(without, crossover_k=float(2**crossing), crossover_low=low, crossover_high=high)


def _root(x: FloatArray, y: FloatArray, after: int) -> float:
    """Where y, linear between its points, is 0 between point after - 1 and point `after`."""
    share = y[after - 1] / (y[after - 1] - y[after])
    return float(x[after - 1] + share * (x[after] - x[after - 1]))
