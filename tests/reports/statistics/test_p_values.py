from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.statistics import benjamini_hochberg, holm, sign_flip_p_value


@pytest.mark.parametrize(
    ("differences", "p"),
    [([1.0, 2.0, -3.0], 1.0), ([3.0, 1.0, -0.5], 0.5), ([1.0] * 5, 0.0625), ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.03125)],
)
def test_sign_flip_p_for_a_few_pairs(differences, p):
    assert sign_flip_p_value(differences) == p


def test_sign_flip_floor():
    assert [sign_flip_p_value(np.arange(1.0, n + 1)) for n in range(3, 17)] == [2.0 ** (1 - n) for n in range(3, 17)]


def test_drawn_sign_flips_agree_with_all_of_them():
    differences = np.random.default_rng(0).normal(0.3, 1, 17)
    patterns = np.array(list(itertools.product([-1, 1], repeat=17)))
    exact = np.mean(np.abs(patterns @ differences) >= abs(differences.sum()) - 1e-12)
    assert sign_flip_p_value(differences) == pytest.approx(exact, abs=0.005)
    assert sign_flip_p_value(differences) == sign_flip_p_value(differences)


p_values = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_holm_by_hand():
    # Sorted .005 .01 .03 .04 times 4 3 2 1 is .02 .03 .06 .04; the running maximum lifts the last to .06.
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.6]), [1, 1])
    assert holm([]).shape == (0,)


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
@pytest.mark.parametrize("bad", [[math.nan], [-0.1], [1.1]])
def test_what_is_no_p_value_is_refused(adjust, bad):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        adjust(bad)


def test_benjamini_hochberg_by_hand():
    # Sorted .005 .01 .03 .04 times 4/1 4/2 4/3 4/4 is .02 .02 .04 .04.
    np.testing.assert_allclose(benjamini_hochberg([0.01, 0.04, 0.03, 0.005]), [0.02, 0.04, 0.04, 0.02])
    # Sorted .01 .04 .05 times 3 1.5 1 is .03 .06 .05; the running minimum from the right lowers the second to .05.
    np.testing.assert_allclose(benjamini_hochberg([0.05, 0.04, 0.01]), [0.05, 0.05, 0.03])
    assert benjamini_hochberg([]).shape == (0,)


@given(p_values)
def test_benjamini_hochberg_agrees_with_scipy(p):
    np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p))


@given(p_values)
def test_both_corrections_keep_the_order_and_holm_is_the_stricter(p):
    q, strict = benjamini_hochberg(p), holm(p)
    assert np.all(p <= q + 1e-12) and np.all(q <= strict + 1e-12)
    order = np.argsort(p)
    assert np.all(np.diff(q[order]) >= 0) and np.all(np.diff(strict[order]) >= 0)
