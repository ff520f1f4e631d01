"""pass@k and maj@k over k, and what training gained at each k: sharpening or learning.

Training that only makes likely what the model could already do gains at k = 1. It loses at large k, where the variety
of the untrained model wins (Yue et al., arXiv:2504.13837).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from reports.measure import Analysis
from reports.measure.curves import Curve, Line, Points, curves_of, mean_curve, to_line
from reports.measure.measurements import Measurement
from reports.statistics import FloatArray

TIE_DECIMALS = 9
"""Digits of a gain in percentage points: rounding errors lie below, a single sample far above."""


def curves_over_k(analysis: Analysis, family: str) -> list[Curve]:
    """A metric of the final evaluation over k. family: `pass` or `maj`, for pass@k or maj@k."""

    def points(m: Measurement) -> Points:
        return points_over_k({} if m.final is None else m.final["metrics"], family)

    return curves_of(analysis, points)


def points_over_k(metrics: Mapping[str, float | None], family: str) -> list[tuple[float, float | None]]:
    """The pairs (k, value) of every `<family>@k` among the metrics, by k."""
    named = {name: name.removeprefix(f"{family}@") for name in metrics if name.startswith(f"{family}@")}
    return sorted(((int(k), metrics[name]) for name, k in named.items() if k.isdecimal()), key=lambda point: point[0])


def base_line_over_k(metrics: Mapping[str, float | None], family: str) -> Line | None:
    """The line of the model before training; None if it was not measured."""
    line = to_line(0, points_over_k(metrics, family))
    return line if len(line.x) else None


@dataclass(frozen=True)
class Sharpening:
    """What an arm gained over the model before training, in percentage points, at the smallest and the largest k.

    crossover_k: where the gain first falls below 0 after it was above; the last k of a stretch at 0 before that; None
    if it does not fall below 0 among the evaluated k. crossover_low, crossover_high: the k around it at which the t
    interval of the gain over training seeds holds 0, which is a confidence interval at the level of the band; None
    where it reaches beyond the evaluated k, or without a band.
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
    """pass@k after training minus before it, in percentage points, over k; none without both at two k or more."""
    before = base_line_over_k(analysis.base_metrics, "pass")
    if before is None:
        return []
    curves = []
    for curve in curves_over_k(analysis, "pass"):
        gains = [gain for line in curve.lines if len((gain := _gain(line, before)).x) > 1]
        if gains and len((mean := mean_curve(curve.arm, gains, analysis.sweep.alpha)).grid) > 1:
            curves.append(mean)
    return curves


def _gain(after: Line, before: Line) -> Line:
    k, mine, theirs = np.intersect1d(after.x, before.x, return_indices=True)
    return Line(after.seed, k, 100 * (after.y[mine] - before.y[theirs]))


def sharpening(curve: Curve) -> Sharpening:
    """The summary of one of the `gain_curves`."""
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
    # A gain that is 0 except for rounding is a tie.
    mean, lower, upper = (np.round(line, TIE_DECIMALS) for line in (curve.mean, curve.low, curve.high))
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
    """Where y, linear between points, crosses 0 between the point before `after` and the point `after`."""
    share = y[after - 1] / (y[after - 1] - y[after])
    return float(x[after - 1] + share * (x[after] - x[after - 1]))
