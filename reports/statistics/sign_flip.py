"""The sign-flip test: exact under the null, whatever the distribution, but with a floor for few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from reports.statistics.checks import RELATIVE_TOLERANCE, FloatArray, finite_scores

EXACT_SIGN_FLIP_PAIRS = 16
SIGN_FLIP_DRAWS = 100_000


def sign_flip_p_value(differences: Sequence[float] | FloatArray) -> float:
    """Two-sided p of the mean difference when the sign of each difference [n] is a fair coin (Fisher 1935).

    Exact over all 2^n sign patterns up to n = 16, so never below 2^(1-n); above that 1e5 draws with a fixed seed, the
    observed pattern counted among them.
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
    """All sign patterns [2^n, n]."""
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return np.asarray(1.0 - 2.0 * bits, dtype=np.float64)


def _sign_draws(n: int) -> FloatArray:
    """Seeded random sign patterns [SIGN_FLIP_DRAWS, n]."""
    return np.random.default_rng(0).choice(np.array([-1.0, 1.0]), size=(SIGN_FLIP_DRAWS, n))
