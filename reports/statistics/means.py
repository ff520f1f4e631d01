"""Means over training seeds: interquartile means, Student's t intervals, clustered standard errors.

The checks of scores, tables and levels that the whole package uses are also here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MIN_PAIRS = 3
"""The fewest seeds for a test; for unpaired arms, the fewest in each arm."""

# The difference of two scores has a rounding error of about 1e-16 of their size. A relative spread up to this tolerance
# counts as zero.
RELATIVE_TOLERANCE = 1e-12


def finite_scores(name: str, values: Sequence[float] | FloatArray) -> FloatArray:
    """Return the scores as floats [n_seeds]. Raises ValueError unless they are a non-empty list of finite numbers."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} has shape {array.shape}: give one score per seed, a non-empty list [n_seeds]")
    if not bool(np.isfinite(array).all()):
        bad = np.flatnonzero(~np.isfinite(array)).tolist()
        raise ValueError(f"{name} is not finite at positions {bad}: leave out seeds without a score, in both arms")
    return array


def finite_table(name: str, values: Sequence[Sequence[float]] | FloatArray, axes: str) -> FloatArray:
    """Return the table as floats [rows, columns].

    Raises ValueError unless it is a non-empty table of finite numbers.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: give a non-empty table {axes}")
    if not bool(np.isfinite(array).all()):
        raise ValueError(f"{name} has entries that are not finite: leave out the rows or columns that lack a score")
    return array


def require_level(alpha: float) -> None:
    """Raise ValueError unless alpha is a significance level."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}: a significance level lies between 0 and 1, e.g. 0.05")


def interquartile_mean(values: Sequence[float] | FloatArray) -> float:
    """Return the mean of the middle half of `values` [n].

    One collapsed seed moves it less than the mean, and it uses more of the data than the median.
    """
    return float(interquartile_means(finite_scores("values", values)))


def interquartile_means(values: FloatArray) -> FloatArray:
    """Return the interquartile mean over the last axis: [..., n] -> [...].

    If n is not a multiple of four, the values at the edges of the middle half are weighted by a fraction. Dropping only
    complete values would shift the mean with n, by up to two standard errors if the values come from tasks with very
    different scores.
    """
    # Value i of the n sorted values covers the quantiles from i/n to (i+1)/n. Its weight is the part of that range
    # inside [1/4, 3/4]. The weights add up to one half, hence the factor 2.
    ends = np.arange(values.shape[-1] + 1) / values.shape[-1]
    weights = np.clip(np.minimum(ends[1:], 0.75) - np.maximum(ends[:-1], 0.25), 0, None)
    return np.asarray(np.sort(values, axis=-1) @ weights * 2, dtype=np.float64)


def t_interval(values: Sequence[float] | FloatArray, alpha: float = 0.05) -> tuple[float, float]:
    """Return the t(n-1) interval of the mean of `values` [n] at level 1 - alpha.

    The interval is (NaN, NaN) for a single value, and if all values are equal: they do not show how far other values
    could lie.
    """
    sample = finite_scores("values", values)
    if np.ptp(sample) <= RELATIVE_TOLERANCE * np.abs(sample).max():
        return math.nan, math.nan
    low, high = t_band(sample[:, None], alpha)
    return float(low[0]), float(high[0])


def t_band(values: FloatArray, alpha: float = 0.05) -> tuple[FloatArray, FloatArray]:
    """Return pointwise t(n-1) intervals of the mean over axis 0: [n, points] -> (low, high) [points]; NaN for n = 1."""
    from scipy.special import stdtrit

    require_level(alpha)
    n = len(values)
    if n < 2:
        nothing = np.full(values.shape[1:], math.nan)
        return nothing, nothing
    half_width = stdtrit(n - 1, 1 - alpha / 2) * values.std(axis=0, ddof=1) / math.sqrt(n)
    mean = values.mean(axis=0)
    return mean - half_width, mean + half_width


def cluster_values(scores: Sequence[float] | FloatArray, clusters: Sequence[Hashable]) -> FloatArray:
    """Return one value per cluster [C], in the order of first appearance.

    scores [n], clusters [n]: the cluster of each score.
    The mean of the values is the mean of all scores, and their standard deviation divided by sqrt(C) is the clustered
    standard error. So any analysis of one value per replicate becomes an analysis of clusters.

    If all clusters have the same size, a cluster's value is its mean. Otherwise it is the mean of all scores plus the
    cluster's contribution to it. If two arms have the same clusters, subtracting their values gives the values of the
    score differences.

    Raises ValueError for scores that are empty or not finite, or if there are not as many clusters as scores.
    """
    values = finite_scores("scores", scores)
    if len(clusters) != len(values):
        raise ValueError(f"{len(values)} scores and {len(clusters)} clusters: give the cluster of each score")
    place = {cluster: index for index, cluster in enumerate(dict.fromkeys(clusters))}
    index = np.array([place[cluster] for cluster in clusters])
    sizes, sums = np.bincount(index), np.bincount(index, weights=values)
    if sizes.min() == sizes.max():
        return np.asarray(sums / sizes[0], dtype=np.float64)
    mean = values.mean()
    return np.asarray(mean + (sums - sizes * mean) * len(sizes) / len(values), dtype=np.float64)


def clustered_error(scores: Sequence[float] | FloatArray, clusters: Sequence[Hashable]) -> float:
    """Return the clustered standard error of the mean of the scores; NaN for a single cluster.

    Raises ValueError, like `cluster_values`.
    """
    values = cluster_values(scores, clusters)
    return math.nan if len(values) < 2 else float(values.std(ddof=1)) / math.sqrt(len(values))
