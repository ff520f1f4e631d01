"""pass@k as a curve over k: from counts of correct samples, with its sampling noise and a simultaneous band.

Shapes: n evaluations (one for each training seed), K values of k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from reports.statistics.means import MIN_PAIRS, FloatArray, require_level

IntArray = npt.NDArray[np.int64]

CoverageWord = Literal["sharpened", "discovered", "both", "cannot tell"]

MOST_K = 64
"""The most values of k in a curve. Small k are all included; larger ones are evenly spaced in log k."""
DRAWS = 2000
LARGE = 0.5
"""A k counts as large if it is at least this fraction of the largest k."""


def all_k(samples: int) -> list[int]:
    """Return every k up to the number of samples, thinned out at large k if there are more than 64 samples."""
    if samples <= MOST_K:
        return list(range(1, samples + 1))
    return [int(k) for k in np.unique(np.geomspace(1, samples, MOST_K).round())]


def pass_curve(problems: Sequence[int] | IntArray, ks: Sequence[int]) -> FloatArray:
    """Return the unbiased mean pass@k over problems [K] (arXiv:2107.03374, eq. 1).

    problems [samples + 1]: how many problems have 0, 1, ... correct samples.
    """
    counts = np.asarray(problems, dtype=np.float64)
    return np.asarray(counts @ _chances(len(counts) - 1, tuple(ks)) / counts.sum(), dtype=np.float64)


def sampling_covariance(problems: Sequence[int] | IntArray, ks: Sequence[int]) -> FloatArray:
    """Return the covariance [K, K] of a `pass_curve` over new samples on the same problems.

    A problem with c of n samples correct is assumed to have the success rate (c + 1/2) / (n + 1). So a problem that was
    always or never solved still contributes some noise.
    """
    counts = np.asarray(problems, dtype=np.float64)
    covariances = _covariances(len(counts) - 1, tuple(ks))
    return np.asarray(np.tensordot(counts, covariances, 1) / counts.sum() ** 2, dtype=np.float64)


def simultaneous_half_widths(
    curves: FloatArray, sampling: FloatArray, shared: FloatArray | None = None, alpha: float = 0.05
) -> FloatArray:
    """Return half-widths [K] of a band around the mean of `curves` [n, K]; NaN for fewer than three curves.

    The band contains the true curve at all k simultaneously with probability 1 - alpha.

    sampling [K, K]: the covariance of a single curve due to sampling noise alone. It is a lower bound of the variance
    over curves.
    shared [K, K]: the covariance of what all curves have in common, such as one evaluation that all are compared with.

    The half-width combines two parts in quadrature. The part of the mean over curves uses the quantile of the largest
    |t| over k; the shared part uses the quantile of the largest |z|. Both quantiles are simulated from normal curves
    that have these curves' correlations over k. A few curves determine these poorly, so the correlations of `sampling`
    are used if they give a larger quantile.
    """
    require_level(alpha)
    n, n_k = curves.shape
    if n < MIN_PAIRS:
        return np.full(n_k, np.nan)
    covariance = np.atleast_2d(np.cov(curves, rowvar=False))
    variances = np.maximum(np.diag(covariance), np.diag(sampling))
    quantile = max(_largest_t(covariance, n, alpha), _largest_t(sampling, n, alpha))
    squares = quantile**2 * variances / n
    if shared is not None:
        squares = squares + _largest_t(shared, math.inf, alpha) ** 2 * np.diag(shared)
    return np.asarray(np.sqrt(squares), dtype=np.float64)


def _largest_t(covariance: FloatArray, n: float, alpha: float) -> float:
    """Return the quantile of the largest |t| over k for the mean of n normal curves; of |z| if n is infinite.

    If the covariance is zero, it is the quantile for a single k, so that a band with variance from elsewhere still has
    a width.
    """
    from scipy.special import stdtrit

    # The covariance of fewer curves than k is singular, and a Cholesky factorisation would fail. An eigendecomposition
    # gives a root [rank, K], whose columns are scaled to variance 1.
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * max(values[-1], 0.0)
    roots = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
    sizes = np.sqrt((roots**2).sum(axis=0))
    roots = roots[:, sizes > 0] / sizes[sizes > 0]
    if not roots.size:
        return float(stdtrit(n - 1, 1 - alpha / 2))
    rng = np.random.default_rng(0)
    means = rng.standard_normal((DRAWS, len(roots))) @ roots
    if math.isfinite(n):
        # The variance of n curves is independent of their mean, so the two are simulated separately.
        squares = np.zeros_like(means)
        for _ in range(int(n) - 1):  # One curve at a time, to bound the memory.
            squares += (rng.standard_normal((DRAWS, len(roots))) @ roots) ** 2
        means = means / np.sqrt(squares / (int(n) - 1))
    return float(np.quantile(np.abs(means).max(axis=1), 1 - alpha))


def coverage_word(ks: Sequence[int] | FloatArray, low: FloatArray, high: FloatArray) -> CoverageWord:
    """Classify a difference in pass@k by its simultaneous band [K].

    * sharpened: up at k = 1 and down at a large k.
    * discovered: up at a large k, and not up at k = 1.
    * both: up at k = 1 and at a large k.
    * cannot tell: anything else, such as up at one large k and down at another.

    Up and down mean that the band lies entirely above or below 0. A k is large from half of the largest onwards, except
    k = 1. If there is no true difference at any k, a word other than "cannot tell" is at most as frequent as a failure
    of the band.
    """
    large = (np.asarray(ks) >= LARGE * ks[-1]) & (np.asarray(ks) > 1)
    up_at_one, up, down = bool(low[0] > 0), bool((low[large] > 0).any()), bool((high[large] < 0).any())
    if up and not down:
        return "both" if up_at_one else "discovered"
    return "sharpened" if up_at_one and down and not up else "cannot tell"


@lru_cache(maxsize=32)
def _chances(n: int, ks: tuple[int, ...]) -> FloatArray:
    """Return pass@k for a problem with c of n samples correct, for each c [n + 1, K]."""
    right, drawn = np.arange(n + 1)[:, None], np.arange(max(ks))
    # 1 - C(n - c, k) / C(n, k) as a running product over the k samples, which cannot overflow.
    none_right = np.cumprod(np.maximum(n - right - drawn, 0) / (n - drawn), axis=1)
    return np.asarray(1 - none_right[:, np.array(ks) - 1], dtype=np.float64)


@lru_cache(maxsize=8)
def _covariances(n: int, ks: tuple[int, ...]) -> FloatArray:
    """Return the covariance [n + 1, K, K] of one problem's pass@k, by its number of correct samples."""
    from scipy.special import gammaln

    chances, right = _chances(n, ks), np.arange(n + 1)
    rates = (right[:, None] + 0.5) / (n + 1)
    # Use logarithms, because binomial coefficients overflow for many samples.
    ways = gammaln(n + 1) - gammaln(right + 1) - gammaln(n - right + 1)
    weights = np.exp(ways + right * np.log(rates) + (n - right) * np.log1p(-rates))
    means = weights @ chances
    return np.asarray([
        (chances * weight[:, None]).T @ chances - np.outer(mean, mean)
        for weight, mean in zip(weights, means, strict=True)
    ], dtype=np.float64)  # fmt: skip
