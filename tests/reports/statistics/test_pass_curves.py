from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import pass_at_k
from reports.statistics import all_k, coverage_word, pass_curve, sampling_covariance, simultaneous_half_widths


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12).filter(any))
def test_a_curve_is_the_mean_of_pass_at_k(problems):
    n = len(problems) - 1
    expected = [
        sum(count * pass_at_k(n, right, k) for right, count in enumerate(problems)) / sum(problems)
        for k in range(1, n + 1)
    ]
    np.testing.assert_allclose(pass_curve(problems, all_k(n)), expected, atol=1e-12)


def test_every_k_up_to_64_and_then_some():
    assert all_k(64) == list(range(1, 65))
    some = all_k(1024)
    assert some[0] == 1 and some[-1] == 1024 and len(some) <= 64 and some[:5] == [1, 2, 3, 4, 5]


def test_the_sampling_covariance_is_that_of_new_samples():
    rng = np.random.default_rng(0)
    rates, ks = rng.beta(1, 1, 400), all_k(8)
    drawn = np.array([pass_curve(np.bincount(rng.binomial(8, rates), minlength=9), ks) for _ in range(2000)])
    found = np.mean(
        [sampling_covariance(np.bincount(rng.binomial(8, rates), minlength=9), ks) for _ in range(50)], axis=0
    )
    np.testing.assert_allclose(found, np.cov(drawn, rowvar=False), rtol=0.25, atol=1e-6)


def test_a_band_of_curves_without_spread_has_the_width_of_their_samples():
    curves, sampling = np.zeros((4, 3)), np.diag([4.0, 1.0, 0.0])
    widths = simultaneous_half_widths(curves, sampling)
    assert widths[0] == pytest.approx(2 * widths[1]) and widths[1] > 1 and widths[2] == 0
    assert np.isnan(simultaneous_half_widths(curves[:2], sampling)).all()


def test_a_band_over_one_k_is_the_t_interval():
    curves = np.random.default_rng(0).normal(0, 1, (6, 1))
    t = 2.570582  # 97.5% quantile with 5 degrees of freedom
    assert simultaneous_half_widths(curves, np.zeros((1, 1)))[0] == pytest.approx(
        t * curves.std(ddof=1) / np.sqrt(6), rel=0.06
    )


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        ([1, 0, -3, -4], [2, 1, -1, -2], "sharpened"),
        ([-1, 0, 1, 1], [2, 2, 2, 2], "discovered"),
        ([-2, 0, 1, 1], [-1, 2, 2, 2], "discovered"),
        ([1, 1, 1, 1], [2, 2, 2, 2], "both"),
        ([1, 1, -1, -1], [2, 2, 2, 2], "cannot tell"),  # up at k = 1, and nothing is known of large k
        ([1, -3, -3, -3], [2, -1, 1, 1], "cannot tell"),  # down at k = 2 alone, which is not large
        ([-3, -3, -3, -3], [-1, -1, -1, -1], "cannot tell"),
        ([1, 0, 1, -3], [2, 2, 2, -1], "cannot tell"),  # up and down at large k
    ],
)
def test_words(low, high, word):
    assert coverage_word([1, 2, 4, 8], np.array(low), np.array(high)) == word


def test_with_two_samples_a_gain_at_one_alone_is_no_gain_at_large_k():
    assert coverage_word([1, 2], np.array([1, -1]), np.array([3, 2])) == "cannot tell"
    assert coverage_word([1, 2], np.array([1, -3]), np.array([3, -1])) == "sharpened"
