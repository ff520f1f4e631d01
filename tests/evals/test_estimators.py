from __future__ import annotations

import math
from itertools import combinations, product
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.estimators import avg_at_n, mean_pass_at_k, pass_at_k, se_over_problems, se_over_samples

COUNTS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(COUNTS)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(counts):
    n, c, k = counts
    samples = [True] * c + [False] * (n - c)
    assert pass_at_k(n, c, k) == pytest.approx(mean(any(subset) for subset in combinations(samples, k)), abs=1e-12)


def test_pass_at_k_is_unbiased():
    p, n, k = 0.3, 6, 4
    expectation = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expectation == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_pass_at_k_with_many_samples():
    # Closed form for one right sample: k / n. Binomials of this size do not fit a float.
    assert pass_at_k(4096, 1, 2048) == 0.5
    assert pass_at_k(4096, 0, 2048) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (4, 1, 5, "draw at least 5 samples"),
        (4, 1, 0, "at least 1"),
        (4, 5, 1, "0 <= c <= n"),
        (4, -1, 1, "0 <= c <= n"),
        (0, 0, 1, "n >= 1"),
    ],
)
def test_impossible_counts_are_refused(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(n, c, k)


def test_means_over_problems():
    assert avg_at_n(4, 1) == 0.25
    assert mean_pass_at_k([0, 1, 4], n=4, k=2) == pytest.approx((0 + 0.5 + 1) / 3)
    with pytest.raises(ValueError, match="no problems"):
        mean_pass_at_k([], n=4, k=1)


def test_se_over_problems_is_that_of_a_mean():
    # Shares 0, 1/2, 1: sd 1/2 with ddof 1, over the root of 3.
    assert se_over_problems([0, 2, 4], n=4) == pytest.approx(0.5 / math.sqrt(3))
    assert se_over_problems([3], n=4) is None


def test_se_over_samples_is_unbiased_for_the_variance_of_the_mean():
    # All outcomes of two problems with chances p and q, three samples each: E[se^2] = Var(avg@n).
    n, chances = 3, (0.2, 0.7)
    weights, means, squares = [], [], []
    for counts in product(range(n + 1), repeat=2):
        weights.append(
            math.prod(math.comb(n, c) * p**c * (1 - p) ** (n - c) for c, p in zip(counts, chances, strict=True))
        )
        means.append(mean(c / n for c in counts))
        se = se_over_samples(counts, n)
        assert se is not None
        squares.append(se**2)
    expected_mean = sum(w * m for w, m in zip(weights, means, strict=True))
    variance = sum(w * (m - expected_mean) ** 2 for w, m in zip(weights, means, strict=True))
    assert sum(w * s for w, s in zip(weights, squares, strict=True)) == pytest.approx(variance, abs=1e-12)


def test_se_over_samples_vanishes_where_samples_agree():
    assert se_over_samples([0, 4, 4], n=4) == 0.0
    assert se_over_samples([1], n=1) is None
    assert pstdev([0, 1]) / math.sqrt(1) == se_over_samples([1], n=2)
