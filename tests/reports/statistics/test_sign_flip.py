from __future__ import annotations

import itertools

import numpy as np
import pytest

from reports.statistics import sign_flip_p_value


@pytest.mark.parametrize(
    ("differences", "p"),
    [([1.0, 2.0, -3.0], 1.0), ([3.0, 1.0, -0.5], 0.5), ([1.0] * 5, 0.0625), ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.03125)],
)
def test_sign_flip_p_for_a_few_pairs(differences, p):
    assert sign_flip_p_value(differences) == p


@pytest.mark.parametrize("n", range(3, 17))
def test_sign_flip_floor(n):
    assert sign_flip_p_value(np.arange(1.0, n + 1)) == 2.0 ** (1 - n)


def test_drawn_sign_flips_agree_with_all_of_them():
    differences = np.random.default_rng(0).normal(0.3, 1, 17)
    patterns = np.array(list(itertools.product([-1, 1], repeat=17)))
    exact = np.mean(np.abs(patterns @ differences) >= abs(differences.sum()) - 1e-12)
    assert sign_flip_p_value(differences) == pytest.approx(exact, abs=0.005)
    assert sign_flip_p_value(differences) == sign_flip_p_value(differences)
