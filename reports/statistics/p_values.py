"""p values: of a t statistic, of the sign-flip test, and adjusted for several tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.statistics.means import RELATIVE_TOLERANCE, FloatArray, finite_scores

EXACT_SIGN_FLIP_PAIRS = 32
SIGN_FLIP_DRAWS = 100_000
MOST_SIGNS = 10_000_000
"""The most signs to draw. With the many problems of a benchmark, more would take seconds."""
DRAWS_AT_ONCE = 1000
"""Bounds the memory: all patterns at once would take more than the rest of a report."""


def t_p_value(statistic: float, df: float) -> float:
    """Return the two-sided p value of a t statistic with `df` degrees of freedom."""
    from scipy.special import stdtr

    return float(2 * stdtr(df, -abs(statistic)))


def sign_flip_p_value(differences: Sequence[float] | FloatArray) -> float:
    """Return the two-sided p value of the mean of `differences` [n] if the sign of each is a coin flip (Fisher 1935).

    The test is exact under the null hypothesis, whatever the distribution. Up to n = 32 it counts all 2^n sign
    patterns, so p is never below 2^(1-n). For larger n it draws 1e5 patterns with a fixed seed, fewer above n = 100,
    and counts the observed pattern as one of them.
    """
    sample = finite_scores("differences", differences)
    n = len(sample)
    # Rounding must not exclude a pattern whose sum equals the observed one.
    extreme = abs(float(sample.sum())) - RELATIVE_TOLERANCE * float(np.abs(sample).sum())
    if extreme <= 0:
        return 1.0
    if n <= EXACT_SIGN_FLIP_PAIRS:
        return _share_beyond(sample, extreme)
    draws = min(SIGN_FLIP_DRAWS, MOST_SIGNS // n)
    rng, beyond = np.random.default_rng(0), 0
    for start in range(0, draws, DRAWS_AT_ONCE):
        signs = rng.choice(np.array([-1.0, 1.0]), size=(min(DRAWS_AT_ONCE, draws - start), n))
        beyond += int(np.count_nonzero(np.abs(signs @ sample) >= extreme))
    # The observed pattern is one of the patterns, so p is never 0 and the test keeps its level.
    return (beyond + 1) / (draws + 1)


def _share_beyond(sample: FloatArray, extreme: float) -> float:
    """Return the share of all 2^n sign patterns whose sum is at least `extreme` > 0 in absolute value.

    Every sum is one of the first half of `sample` plus one of the second. Sorting the 2^(n/2) sums of one half replaces
    the enumeration of 2^n by binary searches (Horowitz and Sahni 1974, J. ACM 21:277).
    """
    n = len(sample)
    first, second = _signed_sums(sample[: n // 2]), np.sort(_signed_sums(sample[n // 2 :]))
    below = int(np.searchsorted(second, extreme - first).sum())
    return float(2 * (2**n - below) / 2**n)  # The sums lie symmetrically around 0.


def _signed_sums(values: FloatArray) -> FloatArray:
    """Return the sums [2^n] of `values` [n] for all sign patterns."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Return Holm's adjusted p values [m], in the order of the input (Holm 1979).

    Rejecting the hypotheses whose adjusted p is at most alpha keeps the chance of any false rejection at alpha. Pass
    1.0 for a contrast that could not be tested. Raises ValueError for a p value outside [0, 1].
    """
    p = _require_p_values(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    # The smallest of m is multiplied by m, the next by m - 1, and so on. The running maximum keeps the adjusted values
    # in order.
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def _require_p_values(given: Sequence[float] | FloatArray) -> FloatArray:
    p = np.asarray(given, dtype=np.float64)
    if p.ndim != 1 or not bool(np.all((p >= 0) & (p <= 1))):
        raise ValueError(f"p values are {given}: each must lie in [0, 1]; give 1.0 for a contrast without a test")
    return p
