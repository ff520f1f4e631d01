from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from reports.statistics import interquartile_mean_over_tasks, probability_of_improvement


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
