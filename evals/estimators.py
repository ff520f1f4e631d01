"""Estimators from n samples a problem: success and its standard errors, best-of-n."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from operator import itemgetter


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


def best_of_n(scores: Sequence[float], values: Sequence[float], n: int) -> float:
    """Expected value of the sample with the highest score among n: the mean over all subsets of n of the N samples.

    With the scores in ascending order, the i-th sample is the best of a random subset with probability
    C(i-1, n-1) / C(N, n); among samples with one score each is as likely as the others to be taken. Unbiased, as
    `pass_at_k`, which it is where scores and values are the verdicts.
    scores, values: of the samples of one problem [N]. Raises ValueError unless 1 <= n <= N, and for a NaN score.
    """
    if len(scores) != len(values) or not 1 <= n <= len(scores):
        raise ValueError(
            f"best_of_n: n={n} with {len(scores)} scores and {len(values)} values given; both are of the same samples, "
            "and 1 <= n <= their number must hold"
        )
    if any(map(math.isnan, scores)):
        raise ValueError("best_of_n: a score is NaN, which is neither better nor worse than another: leave it out")
    expected, below = 0.0, 0
    for _, tied in itertools.groupby(sorted(zip(scores, values, strict=True)), key=itemgetter(0)):
        of_tied = [value for _, value in tied]
        up_to = below + len(of_tied)
        chance = (math.comb(up_to, n) - math.comb(below, n)) / math.comb(len(scores), n)
        expected += chance * math.fsum(of_tied) / len(of_tied)
        below = up_to
    return expected


def best_of_n_kl(n: int) -> float:
    """ln n - (n - 1) / n in nats, an upper bound of KL(best-of-n || policy): close where no single completion is likely
    (Beirami et al., 2401.01879)."""
    return math.log(n) - (n - 1) / n


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
