"""Estimators of success from n samples a problem, and their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples is right, given c right ones among n: 1 - C(n-c, k) / C(n, k).

    Unbiased for 1 - (1 - p)^k (Chen et al., arXiv:2107.03374, eq. 1).
    Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if n < 1 or not 0 <= c <= n:
        raise ValueError(
            f"pass_at_k: n={n} samples, c={c} right ones given; 0 <= c <= n and n >= 1 must hold: recount them"
        )
    if k < 1:
        raise ValueError(f"pass_at_k: k={k} given; k counts the samples of one try and must be at least 1")
    if k > n:
        raise ValueError(
            f"pass_at_k: k={k} with n={n} samples given; there is no unbiased estimate for k > n: "
            f"draw at least {k} samples a problem or ask for k <= {n}"
        )
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def avg_at_n(n: int, c: int) -> float:
    """Share of right samples, c / n: the mean of pass@1. Raises ValueError as `pass_at_k`."""
    return pass_at_k(n, c, 1)


def mean_pass_at_k(counts: Sequence[int], n: int, k: int) -> float:
    """pass@k averaged over problems. counts: right samples of each problem [P], out of n each. Raises ValueError as
    `pass_at_k`, and for no problems."""
    _require_problems(counts)
    return math.fsum(pass_at_k(n, c, k) for c in counts) / len(counts)


def se_over_problems(counts: Sequence[int], n: int) -> float | None:
    """Standard error of avg@n as an estimate for new problems of the kind; None for a single problem.

    The spread of c/n between problems, sd / sqrt(P), which holds both sources of noise: problems and samples.
    counts: right samples of each problem [P], out of n each. Unit: a fraction, as avg@n.
    """
    _require_problems(counts)
    problems = len(counts)
    if problems < 2:
        return None
    shares = [avg_at_n(n, c) for c in counts]
    mean = math.fsum(shares) / problems
    return math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / (problems - 1) / problems)


def se_over_samples(counts: Sequence[int], n: int) -> float | None:
    """Standard error of avg@n as an estimate for these very problems, drawing new samples; None for a single sample.

    sqrt(sum of p(1-p)/(n-1) over problems) / P with p = c/n, where n-1 makes each problem's variance unbiased.
    counts: right samples of each problem [P], out of n each. Unit: a fraction, as avg@n.
    """
    _require_problems(counts)
    if n < 2:
        return None
    shares = [avg_at_n(n, c) for c in counts]
    return math.sqrt(math.fsum(p * (1 - p) / (n - 1) for p in shares)) / len(shares)


def _require_problems(counts: Sequence[int]) -> None:
    if not counts:
        raise ValueError("no problems given; an estimate needs at least one")
