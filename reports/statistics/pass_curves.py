"""pass@k as a curve over k: from counts of right samples, with its sampling noise and a simultaneous band.

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
"""The largest number of k in a curve: every k at first, then at even distances in log k."""
DRAWS = 2000
LARGE = 0.5
"""A k is large from this share of the largest k on."""


def all_k(samples: int) -> list[int]:
    """Return every k up to the number of samples; above 64 samples, all small ones and some of the large ones."""
    if samples <= MOST_K:
        return list(range(1, samples + 1))
    return [int(k) for k in np.unique(np.geomspace(1, samples, MOST_K).round())]


def pass_curve(problems: Sequence[int] | IntArray, ks: Sequence[int]) -> FloatArray:
    """Return the mean pass@k over problems [K], unbiased (2107.03374, eq. 1).

    problems [samples + 1]: how many problems have 0, 1, ... right samples.
    """
    counts = np.asarray(problems, dtype=np.float64)
    return np.asarray(counts @ _chances(len(counts) - 1, tuple(ks)) / counts.sum(), dtype=np.float64)


def sampling_covariance(problems: Sequence[int] | IntArray, ks: Sequence[int]) -> FloatArray:
    """Return the covariance [K, K] of a `pass_curve` over new samples on the same problems.

    A problem with c of n samples right is assumed to have the success rate (c + 1/2) / (n + 1). A problem that was
    always or never solved therefore has some noise too.
    """
    counts = np.asarray(problems, dtype=np.float64)
    covariances = _covariances(len(counts) - 1, tuple(ks))
    return np.asarray(np.tensordot(counts, covariances, 1) / counts.sum() ** 2, dtype=np.float64)


def simultaneous_half_widths(
    curves: FloatArray, sampling: FloatArray, shared: FloatArray | None = None, alpha: float = 0.05
) -> FloatArray:
    """Return half-widths [K] of a band around the mean of `curves` [n, K]; NaN below three curves.

    The band holds the true curve at every k at once with probability 1 - alpha.

    sampling [K, K]: the covariance of a single curve by the noise of its samples alone; no spread over curves counts as
    smaller. shared [K, K]: the covariance of what all curves have in common, such as one evaluation that all are
    compared with.

    The band joins two in quadrature. That of the mean over curves uses the quantile of the largest |t| over k; that of
    the shared part uses the quantile of the largest |z|. The quantiles are those of normal curves with the correlations
    over k of these curves. A few curves hardly show their correlations, so those of `sampling` are used if their
    quantile is larger.
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
    """Return the quantile of the largest |t| over k of the mean of n normal curves; of |z| if n is infinite.

    It is that of a single k if nothing varies, so that a band whose variance is known otherwise has a width.
    """
    from scipy.special import stdtrit

    # The covariance of fewer curves than k is singular, and a Cholesky factorisation would reject it. An
    # eigendecomposition gives a root [rank, K], whose columns are scaled to variance 1.
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
        # The variance of n curves is independent of their mean, so both are simulated apart.
        squares = np.zeros_like(means)
        for _ in range(int(n) - 1):  # one curve after the other: those of many seeds together are too large to hold
            squares += (rng.standard_normal((DRAWS, len(roots))) @ roots) ** 2
        means = means / np.sqrt(squares / (int(n) - 1))
    return float(np.quantile(np.abs(means).max(axis=1), 1 - alpha))


def coverage_word(ks: Sequence[int] | FloatArray, low: FloatArray, high: FloatArray) -> CoverageWord:
    """Return what a difference of pass@k says, by its simultaneous band [K].

    A k is large from half of the largest on, but never k = 1. sharpened: up at k = 1 and down at a large k. discovered:
    up at a large k, and not up at k = 1. both: up at k = 1 and at a large k. cannot tell: anything else, such as up at
    one large k and down at another.

    Up and down mean that the whole band lies above or below 0. If there is no difference at any k, a word other than
    "cannot tell" is therefore at most as frequent as a failure of the band.
    """
    large = (np.asarray(ks) >= LARGE * ks[-1]) & (np.asarray(ks) > 1)
    up_at_one, up, down = bool(low[0] > 0), bool((low[large] > 0).any()), bool((high[large] < 0).any())
    if up and not down:
        return "both" if up_at_one else "discovered"
    return "sharpened" if up_at_one and down and not up else "cannot tell"


@lru_cache(maxsize=32)
def _chances(n: int, ks: tuple[int, ...]) -> FloatArray:
    """Return pass@k of a problem with c of n samples right, for each c [n + 1, K]."""
    right, drawn = np.arange(n + 1)[:, None], np.arange(max(ks))
    # 1 - C(n - c, k) / C(n, k) as a running product over the k samples, which cannot overflow.
    none_right = np.cumprod(np.maximum(n - right - drawn, 0) / (n - drawn), axis=1)
    return np.asarray(1 - none_right[:, np.array(ks) - 1], dtype=np.float64)


@lru_cache(maxsize=8)
def _covariances(n: int, ks: tuple[int, ...]) -> FloatArray:
    """Return the covariance [n + 1, K, K] of one problem's pass@k, by its number of right samples."""
    from scipy.special import gammaln

    chances, right = _chances(n, ks), np.arange(n + 1)
    rates = (right[:, None] + 0.5) / (n + 1)
    # Binomial weights in logarithms, since the coefficients overflow for many samples.
    ways = gammaln(n + 1) - gammaln(right + 1) - gammaln(n - right + 1)
    weights = np.exp(ways + right * np.log(rates) + (n - right) * np.log1p(-rates))
    means = weights @ chances
    return np.asarray([
        (chances * weight[:, None]).T @ chances - np.outer(mean, mean)
        for weight, mean in zip(weights, means, strict=True)
    ], dtype=np.float64)  # fmt: skip
