"""Student's t intervals of a mean over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reports.statistics.checks import FloatArray, finite_scores, require_level


def t_interval(values: Sequence[float] | FloatArray, alpha: float = 0.05) -> tuple[float, float]:
    """The t(n-1) interval of the mean of `values` [n] at level 1 - alpha; (NaN, NaN) for one value."""
    sample = finite_scores("values", values)
    low, high = t_band(sample[:, None], alpha)
    return float(low[0]), float(high[0])


def t_band(values: FloatArray, alpha: float = 0.05) -> tuple[FloatArray, FloatArray]:
    """Pointwise t(n-1) intervals of the mean over axis 0: [n, points] -> (low, high) [points]; NaN for n = 1."""
    from scipy.special import stdtrit

    require_level(alpha)
    n = len(values)
    if n < 2:
        nothing = np.full(values.shape[1:], math.nan)
        return nothing, nothing
    half_width = stdtrit(n - 1, 1 - alpha / 2) * values.std(axis=0, ddof=1) / math.sqrt(n)
    mean = values.mean(axis=0)
    return mean - half_width, mean + half_width


def t_p_value(statistic: float, df: float) -> float:
    """Two-sided p of a t statistic."""
    from scipy.special import stdtr

    return float(2 * stdtr(df, -abs(statistic)))
