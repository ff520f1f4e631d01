from __future__ import annotations

import math
from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.metrics.success import best_of_n, best_of_n_kl, g_pass_at_k, pass_at_k, pass_hat_k
from harness.errors import InvalidError
from tests.refusals import refuses

COUNTS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(COUNTS)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(counts):
    n, c, k = counts
    samples = [True] * c + [False] * (n - c)
    assert pass_at_k(n, c, k) == pytest.approx(mean(any(subset) for subset in combinations(samples, k)), abs=1e-12)


@given(COUNTS)
def test_pass_hat_k_is_the_share_of_subsets_that_are_all_right(counts):
    n, c, k = counts
    samples = [True] * c + [False] * (n - c)
    assert pass_hat_k(n, c, k) == pytest.approx(mean(all(subset) for subset in combinations(samples, k)), abs=1e-12)


@given(COUNTS, st.sampled_from([0.01, 0.1, 0.25, 0.3, 0.5, 0.7, 0.75, 0.9, 1.0]))
def test_g_pass_at_k_is_the_share_of_subsets_with_enough_right_samples(counts, tau):
    n, c, k = counts
    samples = [True] * c + [False] * (n - c)
    # In hundredths, so that the bound does not depend on rounding.
    enough = [100 * sum(subset) >= round(100 * tau) * k for subset in combinations(samples, k)]
    assert g_pass_at_k(n, c, k, tau) == pytest.approx(mean(enough), abs=1e-12)


@given(COUNTS)
def test_g_pass_at_k_lies_between_all_right_and_one_right(counts):
    n, c, k = counts
    assert g_pass_at_k(n, c, k, 1.0) == pytest.approx(pass_hat_k(n, c, k), abs=1e-12)
    assert g_pass_at_k(n, c, k, 1e-6) == pytest.approx(pass_at_k(n, c, k), abs=1e-12)
    assert pass_hat_k(n, c, k) <= g_pass_at_k(n, c, k, 0.5) + 1e-12 <= pass_at_k(n, c, k) + 2e-12


def test_a_share_is_read_as_it_is_written():
    assert 0.07 * 100 > 7, "as a binary number, 7 of 100 would not do"
    assert g_pass_at_k(100, 7, 100, 0.07) == 1
    assert g_pass_at_k(100, 6, 100, 0.07) == 0


@pytest.mark.parametrize("tau", [0.0, -0.5, 1.01, math.nan])
def test_a_share_that_is_none_is_refused(tau):
    with refuses(InvalidError, "evals.tau_not_a_share"):
        g_pass_at_k(4, 2, 2, tau)


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
    ("n", "c", "k", "code"),
    [
        (4, 1, 5, "k_above_samples"),
        (4, 1, 0, "k_too_small"),
        (4, 5, 1, "impossible_counts"),
        (4, -1, 1, "impossible_counts"),
        (0, 0, 1, "impossible_counts"),
    ],
)
@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k, lambda n, c, k: g_pass_at_k(n, c, k, 0.5)])
def test_impossible_counts_are_refused(estimator, n, c, k, code):
    with refuses(InvalidError, f"evals.{code}", **{"n": n, "c": c} if "counts" in code else {"k": k}):
        estimator(n, c, k)


SCORED = st.lists(st.tuples(st.integers(-2, 2), st.floats(-3, 3)), min_size=1, max_size=7).flatmap(
    lambda samples: st.tuples(st.just(samples), st.integers(1, len(samples)))
)


@given(SCORED)
def test_best_of_n_is_the_mean_over_all_subsets(drawn):
    """Five scores for up to seven samples: ties abound, and share what they are worth."""
    samples, n = drawn
    scores, values = zip(*samples, strict=True)

    def best(subset: tuple[tuple[int, float], ...]) -> float:
        top = max(score for score, _ in subset)
        return mean(value for score, value in subset if score == top)

    expected = mean(best(subset) for subset in combinations(samples, n))
    assert best_of_n(scores, values, n) == pytest.approx(expected, abs=1e-9)


@given(COUNTS)
def test_best_of_n_by_the_truth_is_pass_at_k(counts):
    n, c, k = counts
    verdicts = [0.0] * (n - c) + [1.0] * c
    assert best_of_n(verdicts, verdicts, k) == pytest.approx(pass_at_k(n, c, k), abs=1e-12)


@given(SCORED, st.randoms())
def test_best_of_n_does_not_see_the_order_of_the_samples(drawn, random):
    samples, n = drawn
    scores, values = zip(*samples, strict=True)
    shuffled_scores, shuffled_values = zip(*random.sample(samples, len(samples)), strict=True)
    assert best_of_n(shuffled_scores, shuffled_values, n) == pytest.approx(best_of_n(scores, values, n))


def test_best_of_n_ends_at_the_mean_and_at_the_best():
    scores, values = [0.3, -1.0, 2.0, 0.0], [5.0, 1.0, -2.0, 0.0]
    assert best_of_n(scores, values, 1) == 1
    assert best_of_n(scores, values, 4) == -2
    # There are six pairs: the third sample wins three, the first two, the fourth one.
    assert best_of_n(scores, values, 2) == pytest.approx((3 * -2 + 2 * 5 + 0) / 6)


@pytest.mark.parametrize(
    ("scores", "values", "n", "code"),
    [
        ([1.0, 2.0], [1.0, 2.0], 3, "best_of_n_sizes"),
        ([1.0, 2.0], [1.0, 2.0], 0, "best_of_n_sizes"),
        ([1.0, 2.0], [1.0], 1, "best_of_n_sizes"),
        ([1.0, math.nan], [1.0, 2.0], 1, "score_is_nan"),
    ],
)
def test_best_of_what_is_not_there_is_refused(scores, values, n, code):
    with refuses(InvalidError, f"evals.{code}"):
        best_of_n(scores, values, n)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_kl_of_best_of_n_is_that_of_continuous_scores(n):
    """The best of n uniform numbers has density n x^(n-1): its KL to the uniform one by the midpoint rule."""
    steps = 20_000
    points = ((step + 0.5) / steps for step in range(steps))
    kl = math.fsum(n * x ** (n - 1) * math.log(n * x ** (n - 1)) for x in points) / steps
    assert best_of_n_kl(n) == pytest.approx(kl, abs=1e-6)
