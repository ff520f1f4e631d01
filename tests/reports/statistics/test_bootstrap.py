from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from reports.statistics import crossed_bootstrap, interquartile_mean_over_tasks, probability_of_improvement, t_interval


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


def test_the_interquartile_mean_is_that_of_all_runs_and_tasks_together():
    scores = np.random.default_rng(0).normal(size=(5, 7))
    assert interquartile_mean_over_tasks(scores).value == pytest.approx(stats.trim_mean(scores.ravel(), 0.25))
    assert interquartile_mean_over_tasks([[1.0, 2.0], [3.0, 100.0]]).value == 2.5


def test_probability_of_improvement_by_hand():
    # Task 0: 3 > 1, 3 > 2, 2 > 1, 2 = 2: 3.5 of 4. Task 1: 0 of 4.
    estimate = probability_of_improvement([[3.0, 0.0], [2.0, 0.0]], [[1.0, 5.0], [2.0, 6.0]])
    assert estimate.value == pytest.approx((3.5 / 4 + 0) / 2)


def test_probability_of_improvement_is_the_mann_whitney_statistic_averaged_over_tasks():
    rng = np.random.default_rng(0)
    treatment, baseline = rng.integers(0, 5, (6, 3)).astype(float), rng.integers(0, 5, (4, 3)).astype(float)
    u = [stats.mannwhitneyu(treatment[:, task], baseline[:, task]).statistic for task in range(3)]
    assert probability_of_improvement(treatment, baseline).value == pytest.approx(np.mean(u) / 24)
    mirrored = probability_of_improvement(baseline, treatment)
    assert mirrored.value == pytest.approx(1 - np.mean(u) / 24)


def test_tasks_are_never_drawn():
    """Tasks that differ much add nothing to the interval when runs agree."""
    scores = np.tile([[0.1, 0.5, 0.9]], (4, 1))
    for same_runs in (False, True):
        estimate = interquartile_mean_over_tasks(scores, same_runs=same_runs)
        assert estimate.low == estimate.high == estimate.value == pytest.approx(0.5)


@pytest.mark.parametrize("same_runs", [False, True])
def test_the_interval_over_many_runs_is_calibrated(same_runs):
    rng = np.random.default_rng(0)
    hits: list[bool] = []
    for _ in range(200):
        # With rows drawn whole, scores of a run share what the run is like.
        shared = rng.normal(0, 1, (30, 1)) if same_runs else 0.0
        estimate = interquartile_mean_over_tasks(
            shared + rng.normal(0, 0.5, (30, 3)), same_runs=same_runs, draws=400, seed=len(hits)
        )
        hits.append(estimate.low <= 0 <= estimate.high)
    assert np.mean(hits) == pytest.approx(0.93, abs=0.04)


def test_drawing_runs_apart_that_belong_together_is_too_narrow():
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 1, (20, 1)) + rng.normal(0, 0.1, (20, 4))
    together, apart = (interquartile_mean_over_tasks(scores, same_runs=same) for same in (True, False))
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_the_same_seed_gives_the_same_interval_and_two_runs_none():
    scores = np.random.default_rng(0).normal(size=(4, 3))
    assert interquartile_mean_over_tasks(scores) == interquartile_mean_over_tasks(scores)
    assert math.isnan(interquartile_mean_over_tasks(scores[:2]).low)
    assert math.isnan(probability_of_improvement(scores, scores[:2]).high)


def test_all_pairs_count_and_order_does_not():
    scores = np.random.default_rng(1).normal(size=(3, 2))
    other = np.random.default_rng(2).normal(size=(3, 2))
    values = {
        probability_of_improvement(scores[list(order)], other).value for order in itertools.permutations(range(3))
    }
    assert len(values) == 1


def test_bad_tables_of_tasks_are_refused():
    with pytest.raises(ValueError, match=r"\[n_runs, n_tasks\]"):
        interquartile_mean_over_tasks([1.0, 2.0])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement([[1.0, 2.0]], [[1.0]])
    with pytest.raises(ValueError, match="alpha"):
        interquartile_mean_over_tasks([[1.0, 2.0], [1.0, 2.0]], alpha=2)
