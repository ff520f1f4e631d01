from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.statistics import holm, sign_flip_p_value


@pytest.mark.parametrize(
    ("differences", "p"),
    [([1.0, 2.0, -3.0], 1.0), ([3.0, 1.0, -0.5], 0.5), ([1.0] * 5, 0.0625), ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.03125)],
)
def test_sign_flip_p_for_a_few_pairs(differences, p):
    assert sign_flip_p_value(differences) == p


def test_sign_flip_floor():
    for n in (3, 16, 24, 32):
        assert sign_flip_p_value(np.arange(1.0, n + 1)) == 2.0 ** (1 - n)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([-2.0, -0.1, 0.0, 0.1, 0.2, 0.3, 1.0]), min_size=1, max_size=13))
def test_halves_count_what_all_patterns_of_signs_count(differences):
    """On a grid of differences many sums tie with the observed one up to rounding."""
    patterns = np.array(list(itertools.product([-1, 1], repeat=len(differences))))
    exact = np.mean(np.abs(patterns @ differences) >= abs(sum(differences)) - 1e-9)
    assert sign_flip_p_value(differences) == exact


@pytest.mark.parametrize("n", [24, 32, 33, 60])
def test_sign_flips_of_equal_sizes_follow_the_binomial(n):
    """Counted up to 32 differences, drawn above."""
    down = n // 3
    exact = 2 * sum(math.comb(n, k) for k in range(down + 1)) / 2**n
    assert sign_flip_p_value([1.0] * (n - down) + [-1.0] * down) == pytest.approx(exact, abs=0 if n <= 32 else 0.004)


p_values = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_holm_by_hand():
    # Sorted .005 .01 .03 .04 times 4 3 2 1 is .02 .03 .06 .04; the running maximum lifts the last to .06.
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.6]), [1, 1])
    assert holm([]).shape == (0,)


@settings(max_examples=40)
@given(p_values)
def test_holm_keeps_the_order_and_lowers_no_p(p):
    strict = holm(p)
    assert np.all(p <= strict + 1e-12)
    assert np.all(np.diff(strict[np.argsort(p)]) >= 0)
