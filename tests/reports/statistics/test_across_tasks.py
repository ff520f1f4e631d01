"""The interquartile mean and the probability of improvement over several tasks, and how often their intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reports.statistics import FloatArray, interquartile_mean_over_tasks, probability_of_improvement


def runs(rng: np.random.Generator, n_runs: int, n_tasks: int = 3, *, together: float = 0.5) -> FloatArray:
    """Normal scores of runs [n_runs, n_tasks], of which a part is the same on all tasks."""
    shared, own = rng.normal(size=(n_runs, 1)), rng.normal(size=(n_runs, n_tasks))
    scores: FloatArray = math.sqrt(together) * shared + math.sqrt(1 - together) * own
    return scores


def test_the_interquartile_mean_is_that_of_all_runs_and_tasks_together():
    scores = np.random.default_rng(0).normal(size=(4, 7))
    assert interquartile_mean_over_tasks(scores).value == pytest.approx(stats.trim_mean(scores.ravel(), 0.25))
    assert interquartile_mean_over_tasks([[1.0, 2.0], [3.0, 100.0]]).value == 2.5


def test_the_interquartile_mean_does_not_move_with_the_number_of_runs():
    """A task that lies far above the others has a part of a quarter of all scores, which whole values cannot follow."""
    means = [interquartile_mean_over_tasks(np.tile([[0.0, 0.0, 40.0]], (n, 1))).value for n in range(1, 12)]
    assert means == pytest.approx([means[0]] * 11)


def test_the_interval_of_an_interquartile_mean_is_that_of_its_pseudo_values():
    scores = runs(np.random.default_rng(3), 5)
    # One value for each run, all tasks alike: leaving out a run leaves out the same value on each.
    value = interquartile_mean_over_tasks(scores).value
    left = [interquartile_mean_over_tasks(np.delete(scores, i, axis=0)).value for i in range(5)]
    pseudo = [5 * value - 4 * one for one in left]
    error = np.std(pseudo, ddof=1) / math.sqrt(5)
    found = interquartile_mean_over_tasks(scores, 0.1)
    assert (found.high - value, value - found.low) == pytest.approx([stats.t.ppf(0.95, 4) * error] * 2)


def test_tasks_are_no_replication():
    """Runs that agree show no spread, however much tasks differ; and repeating a task narrows nothing."""
    assert math.isnan(interquartile_mean_over_tasks(np.tile([[0.1, 0.5, 0.9]], (4, 1))).low)
    scores, others = runs(np.random.default_rng(0), 8, 1), runs(np.random.default_rng(1), 8, 1)
    for one, many in (
        (interquartile_mean_over_tasks(scores), interquartile_mean_over_tasks(np.tile(scores, (1, 4)))),
        (
            probability_of_improvement(scores, others),
            probability_of_improvement(np.tile(scores, 4), np.tile(others, 4)),
        ),
    ):
        assert (many.low, many.high) == pytest.approx((one.low, one.high))


def test_probability_of_improvement_by_hand():
    # Task 0: 3 > 1, 3 > 2, 2 > 1, 2 = 2: 3.5 of 4. Task 1: 0 of 4.
    estimate = probability_of_improvement([[3.0, 0.0], [2.0, 0.0]], [[1.0, 5.0], [2.0, 6.0]])
    assert estimate.value == pytest.approx((3.5 / 4 + 0) / 2)


@settings(max_examples=40)
@given(st.integers(0, 500))
def test_probability_of_improvement_is_the_mann_whitney_statistic_and_mirrors(seed):
    rng = np.random.default_rng(seed)
    treatment, baseline = (rng.integers(0, 5, (6, 3)).astype(float) for _ in range(2))
    u = [stats.mannwhitneyu(treatment[:, task], baseline[:, task]).statistic for task in range(3)]
    found, mirrored = probability_of_improvement(treatment, baseline), probability_of_improvement(baseline, treatment)
    assert found.value == pytest.approx(np.mean(u) / 36)
    assert (mirrored.value, mirrored.low, mirrored.high) == pytest.approx(
        (1 - found.value, 1 - found.high, 1 - found.low)
    )
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_few_runs_have_numbers_and_no_interval():
    scores = runs(np.random.default_rng(0), 6)
    assert math.isnan(interquartile_mean_over_tasks(scores[:2]).low)
    assert math.isnan(probability_of_improvement(scores[:5], scores[:5] - 9).low)


@pytest.mark.parametrize("together", [0.0, 0.9])
def test_under_the_null_one_half_is_excluded_in_at_most_5_percent(together):
    rng = np.random.default_rng(5)
    pairs = [[runs(rng, 6, together=together) for _ in range(2)] for _ in range(1500)]
    found = [probability_of_improvement(one, other) for one, other in pairs]
    assert np.mean([not one.low <= 0.5 <= one.high for one in found]) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 10])
def test_the_interval_of_an_interquartile_mean_holds_its_level(n):
    rng = np.random.default_rng(n)
    found = [interquartile_mean_over_tasks(runs(rng, n)) for _ in range(1500)]
    assert np.mean([one.low <= 0 <= one.high for one in found]) == pytest.approx(0.945, abs=0.02)


def test_six_runs_that_always_win_exclude_one_half_and_not_certainty():
    scores = runs(np.random.default_rng(0), 6)
    found = probability_of_improvement(scores + 99, scores)
    assert found.value == 1
    assert 0.5 < found.low < 0.9 and 0.99 < found.high < 1
