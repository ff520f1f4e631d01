"""p values: of a t statistic, of the sign-flip test, and adjusted for several tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from reports.statistics.means import RELATIVE_TOLERANCE, FloatArray, finite_scores

EXACT_SIGN_FLIP_PAIRS = 16
SIGN_FLIP_DRAWS = 100_000
MOST_SIGNS = 10_000_000
"""Over the problems of a benchmark, more would not fit into memory."""


def t_p_value(statistic: float, df: float) -> float:
    """The two-sided p value of a t statistic with `df` degrees of freedom."""
    from scipy.special import stdtr

    return float(2 * stdtr(df, -abs(statistic)))


def sign_flip_p_value(differences: Sequence[float] | FloatArray) -> float:
    """The two-sided p value of the mean of `differences` [n], if the sign of each is a fair coin (Fisher 1935).

    The test is exact under the null hypothesis whatever the distribution. Up to n = 16 it counts all 2^n patterns of
    signs, so p is never below 2^(1-n). Above, it draws 1e5 patterns with a fixed seed, fewer above n = 100, and counts
    the observed one among them.
    """
    sample = finite_scores("differences", differences)
    n = len(sample)
    exact = n <= EXACT_SIGN_FLIP_PAIRS
    signs = _sign_patterns(n) if exact else _sign_draws(n)
    observed = abs(float(sample.sum()))
    extreme = int(np.count_nonzero(np.abs(signs @ sample) >= observed - RELATIVE_TOLERANCE * np.abs(sample).sum()))
    return extreme / len(signs) if exact else (extreme + 1) / (len(signs) + 1)


@cache
def _sign_patterns(n: int) -> FloatArray:
    """All patterns of signs [2^n, n]."""
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return np.asarray(1.0 - 2.0 * bits, dtype=np.float64)


def _sign_draws(n: int) -> FloatArray:
    """Random patterns of signs [SIGN_FLIP_DRAWS or fewer, n], the same every time."""
    draws = min(SIGN_FLIP_DRAWS, MOST_SIGNS // n)
    return np.random.default_rng(0).choice(np.array([-1.0, 1.0]), size=(draws, n))


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Holm's adjusted p values [m], in the order given (Holm 1979): reject those at or below alpha.

    This keeps the chance of any false rejection at alpha. Raises ValueError for a p value outside [0, 1]; give 1.0 for
    a contrast that could not be tested.
    """
    p = _require_p_values(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def _require_p_values(given: Sequence[float] | FloatArray) -> FloatArray:
    p = np.asarray(given, dtype=np.float64)
    if p.ndim != 1 or not bool(np.all((p >= 0) & (p <= 1))):
        raise ValueError(f"p values are {given}: each must lie in [0, 1]; give 1.0 for a contrast without a test")
    return p
