from __future__ import annotations

import math
from itertools import product
from statistics import mean, pstdev, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.metrics.averages import avg_at_n, se_over_problems, se_over_samples

REPLICATES = 200


def test_avg_at_n_is_the_share_of_right_samples():
    assert avg_at_n(4, 1) == 0.25


def test_se_over_problems_is_that_of_a_mean():
    # Shares 0, 1/2, 1: sd 1/2 with ddof 1, over the root of 3.
    assert se_over_problems([0, 2, 4], n=4) == pytest.approx(0.5 / math.sqrt(3))
    assert se_over_problems([3], n=4) is None


@given(st.lists(st.integers(0, 6), min_size=2, max_size=9))
def test_se_over_problems_is_the_spread_of_the_shares(counts):
    expected = stdev(c / 6 for c in counts) / math.sqrt(len(counts))
    assert se_over_problems(counts, n=6) == pytest.approx(expected, abs=1e-12)


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


@pytest.mark.parametrize(
    ("problems", "samples", "center", "size", "these_pp", "new_pp"),
    [
        (30, 32, 0.304, 1.5, 1.15, 5.4),  # AIME of one year
        (60, 32, 0.304, 1.5, 0.8, 3.8),  # of two
        (500, 4, 0.76, 2.45, 0.8, 1.3),  # MATH-500
    ],
)
def test_few_problems_are_the_larger_noise(problems, samples, center, size, these_pp, new_pp):
    """How noisy a benchmark's score is, for problems whose difficulty has a Beta distribution of a given mean and size:
    the estimates agree with the spread that new samples, or new problems, really give."""
    rng = np.random.default_rng(0)
    difficulty = rng.beta(center * size, (1 - center) * size, (REPLICATES, problems))
    counts = rng.binomial(samples, difficulty)
    estimated_new = math.sqrt(np.mean([(se_over_problems(row, samples) or 0) ** 2 for row in counts.tolist()]))
    estimated_these = math.sqrt(np.mean([(se_over_samples(row, samples) or 0) ** 2 for row in counts.tolist()]))
    assert 100 * estimated_new == pytest.approx(new_pp, rel=0.04)
    assert 100 * estimated_these == pytest.approx(these_pp, rel=0.05)
    scores = 100 * counts.mean(axis=1) / samples
    assert scores.std() == pytest.approx(new_pp, rel=0.15)
    assert (scores - 100 * difficulty.mean(axis=1)).std() == pytest.approx(these_pp, rel=0.15)
