"""Success in k of n samples: at least one is correct, all are, a share is, or the one with the best score is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from operator import itemgetter

from evals.metrics import Metric, Samples, mean
from harness.errors import InvalidError


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that at least one of k samples is correct, if c of n are: 1 - C(n-c, k) / C(n, k).

    Unbiased for 1 - (1 - p)^k (Chen et al., arXiv:2107.03374, eq. 1). Raises ValueError unless 1 <= k <= n and 0 <= c
    <= n.
    """
    _require_counts("pass_at_k", n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return pass^k, the chance that all of k samples are correct, if c of n are: C(c, k) / C(n, k).

    Unbiased for p^k (Yao et al., arXiv:2406.12045). Raises ValueError, like `pass_at_k`.
    """
    _require_counts("pass_hat_k", n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def g_pass_at_k(n: int, c: int, k: int, tau: float) -> float:
    """Return G-Pass@k_tau, the chance that at least ceil(tau * k) of k samples are correct, if c of n are.

    This is the upper tail of the hypergeometric distribution (Liu et al., arXiv:2412.13147). It equals pass^k at tau =
    1, and pass@k at tau <= 1/k. Raises ValueError, like `pass_at_k`, and unless 0 < tau <= 1.
    """
    _require_counts("g_pass_at_k", n, c, k)
    if not 0 < tau <= 1:
        raise InvalidError("evals.tau_not_a_share", tau=tau)
    # Use `tau` as written: 0.07 of 100 is 7, but its binary value would give 8.
    needed = math.ceil(Fraction(str(tau)) * k)
    ways = sum(math.comb(c, right) * math.comb(n - c, k - right) for right in range(needed, min(c, k) + 1))
    return ways / math.comb(n, k)


def best_of_n(scores: Sequence[float], values: Sequence[float], n: int) -> float:
    """Return the expected value of the sample with the highest score among n.

    scores, values [N]: those of one problem's samples.

    It is the mean over all subsets of n of the N samples. With scores in ascending order, the i-th sample is the best
    of a random subset with probability C(i-1, n-1) / C(N, n). Samples with equal scores are equally likely to be
    chosen. The estimate is unbiased, and equals `pass_at_k` if scores and values are the verdicts.

    Raises ValueError unless 1 <= n <= N, for a NaN score, and for scores and values of different lengths.
    """
    if len(scores) != len(values) or not 1 <= n <= len(scores):
        raise InvalidError("evals.best_of_n_sizes", n=n, n_scores=len(scores), n_values=len(values))
    if any(map(math.isnan, scores)):
        raise InvalidError("evals.score_is_nan")
    expected, below = 0.0, 0
    for _, tied in itertools.groupby(sorted(zip(scores, values, strict=True)), key=itemgetter(0)):
        of_tied = [value for _, value in tied]
        up_to = below + len(of_tied)
        # The best of a subset has this score if the subset is within the first `up_to` samples, but not within the
        # first `below`.
        chance = (math.comb(up_to, n) - math.comb(below, n)) / math.comb(len(scores), n)
        expected += chance * math.fsum(of_tied) / len(of_tied)
        below = up_to
    return expected


def best_of_n_kl(n: int) -> float:
    """Return ln n - (n - 1) / n, in nats, an upper bound of KL(best-of-n || policy).

    The bound is tight if no single completion is likely (Beirami et al., 2401.01879).
    """
    return math.log(n) - (n - 1) / n


def _require_counts(name: str, n: int, c: int, k: int) -> None:
    if n < 1 or not 0 <= c <= n:
        raise InvalidError("evals.impossible_counts", estimator=name, n=n, c=c)
    require_k(name, n, k)


def require_k(name: str, n: int, k: int) -> None:
    """Raise ValueError unless k of n samples can be drawn. name: the caller's name, for the message."""
    if k < 1:
        raise InvalidError("evals.k_too_small", estimator=name, k=k)
    if k > n:
        raise InvalidError("evals.k_above_samples", estimator=name, k=k, n=n)


def _mean_pass_at_k(samples: Samples, k: int) -> float | None:
    return mean(pass_at_k(samples.n, c, k) for c in samples.counts)


def _mean_pass_hat_k(samples: Samples, k: int) -> float | None:
    return mean(pass_hat_k(samples.n, c, k) for c in samples.counts)


PASS_AT_K = Metric("pass@{k}", "at least one of k samples is right", "fraction", "more", _mean_pass_at_k)
PASS_HAT_K = Metric("pass^{k}", "all of k samples are right", "fraction", "more", _mean_pass_hat_k)
