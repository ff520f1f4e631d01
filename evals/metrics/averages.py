"""avg@n, the share of correct samples, with its standard errors: for new problems of this kind, and for these."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evals.metrics import Metric, mean
from evals.metrics.success import pass_at_k
from harness.errors import InvalidError


def avg_at_n(n: int, c: int) -> float:
    """Return the share of correct samples, c / n, which equals pass@1. Raises ValueError as `pass_at_k`."""
    return pass_at_k(n, c, 1)


def se_over_problems(counts: Sequence[int], n: int) -> float | None:
    """Return the standard error of avg@n for new problems of this kind; None for a single problem.

    counts [P]: the number of correct samples of each problem, out of n.
    The result is the standard deviation of c/n over problems divided by sqrt(P), a fraction. It includes both sources
    of noise: problems and samples.
    """
    _require_problems(counts)
    problems = len(counts)
    if problems < 2:
        return None
    shares = [avg_at_n(n, c) for c in counts]
    mean = math.fsum(shares) / problems
    return math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / (problems - 1) / problems)


def se_over_samples(counts: Sequence[int], n: int) -> float | None:
    """Return the standard error of avg@n for new samples of these problems; None for a single sample.

    counts [P]: the number of correct samples of each problem, out of n.
    The result is sqrt(sum of p(1-p)/(n-1) over problems) / P with p = c/n, a fraction. The n-1 makes each problem's
    variance unbiased.
    """
    _require_problems(counts)
    if n < 2:
        return None
    shares = [avg_at_n(n, c) for c in counts]
    return math.sqrt(math.fsum(p * (1 - p) / (n - 1) for p in shares)) / len(shares)


def _require_problems(counts: Sequence[int]) -> None:
    if not counts:
        raise InvalidError("evals.no_problems_to_average")


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


AVG_AT_N = Metric(
    "avg@n",
    "a sample is right",
    "fraction",
    "more",
    lambda samples: mean(avg_at_n(samples.n, c) for c in samples.counts),
)
SE_PROBLEMS = Metric(
    "se_problems_pp",
    "standard error of avg@n for new problems of the kind",
    "percentage points",
    "less",
    lambda samples: _percent(se_over_problems(samples.counts, samples.n)),
)
SE_SAMPLES = Metric(
    "se_samples_pp",
    "standard error of avg@n for these problems",
    "percentage points",
    "less",
    lambda samples: _percent(se_over_samples(samples.counts, samples.n)),
)
