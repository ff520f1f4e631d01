from __future__ import annotations

import math

import numpy as np
import pytest

from reports.statistics import crossed_bootstrap, t_interval


@pytest.mark.parametrize(("n_seeds", "n_problems"), [(6, 30), (10, 100)])
def test_the_interval_holds_over_new_seeds_and_new_problems(n_seeds, n_problems):
    """Crossed effects of both; the interval of estimand A, over seeds alone, misses the mean of all problems."""
    rng = np.random.default_rng(n_seeds)
    held, held_by_seeds_alone = [], []
    for _ in range(400):
        seeds, problems = rng.normal(0, 1, (n_seeds, 1)), rng.normal(0, 5, (1, n_problems))
        table = 2 + seeds + problems + rng.normal(0, 3, (n_seeds, n_problems))
        estimate = crossed_bootstrap(table, draws=400)
        held.append(estimate.low <= 2 <= estimate.high)
        low, high = t_interval(table.mean(axis=1))
        held_by_seeds_alone.append(low <= 2 <= high)
    assert np.mean(held) >= 0.94
    assert np.mean(held_by_seeds_alone) < np.mean(held) - 0.05


def test_the_error_is_that_of_the_two_way_layout():
    """Without noise of single cells its square is the variances of seeds and problems over their numbers."""
    rng = np.random.default_rng(0)
    seeds, problems = rng.normal(0, 1, 8), rng.normal(0, 4, 50)
    estimate = crossed_bootstrap(seeds[:, None] + problems, draws=20_000)
    variance = seeds.var() / 8 + problems.var() / 50
    assert estimate.standard_error == pytest.approx(math.sqrt(variance * 8 / 7), rel=0.02)
    assert estimate.difference == pytest.approx(seeds.mean() + problems.mean())


def test_problems_that_all_agree_leave_the_seeds():
    table = np.array([1.0, 2.0, 4.0, 5.0])[:, None] + np.zeros(40)
    estimate = crossed_bootstrap(table, draws=20_000)
    low, high = t_interval(table[:, 0])
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.1)


@pytest.mark.parametrize("difference", [0.0, 100 / 3])
def test_differences_that_are_all_equal_give_a_zero_width_interval(difference):
    table = np.full((4, 7), difference)
    table[1, 2] *= 1 + 1e-15  # what subtracting scores leaves
    estimate = crossed_bootstrap(table)
    assert estimate.low == estimate.high == estimate.difference == pytest.approx(difference)
    assert estimate.standard_error == 0


def test_the_same_seed_gives_the_same_interval_and_few_seeds_none():
    table = np.random.default_rng(0).normal(size=(4, 9))
    assert crossed_bootstrap(table) == crossed_bootstrap(table) != crossed_bootstrap(table, seed=1)
    assert math.isnan(crossed_bootstrap(table[:2]).low)
    assert crossed_bootstrap(table[:2]).difference == pytest.approx(table[:2].mean())


@pytest.mark.parametrize("bad", [[1.0, 2.0], [[]], [[1.0, math.nan]]])
def test_bad_tables_are_refused(bad):
    with pytest.raises(ValueError, match=r"\[n_seeds, n_problems\]|not finite"):
        crossed_bootstrap(bad)
