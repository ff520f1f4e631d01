from __future__ import annotations

import numpy as np
import pytest

from reports.analysis import analyse
from reports.measurements import read_measurements
from reports.problem_table import problem_table
from reports.problems import ProblemScores, mean_of_known, problem_scores
from tests.reports.synthetic import write_sweep

ARMS = {"base": 0.0, "odd": 1.0}
NAN = float("nan")


def test_shares_of_right_samples_by_problem(tmp_path):
    scores = problem_scores(read_measurements(write_sweep(tmp_path, ARMS, seeds=2)))
    assert scores.problems == ["p0", "p1"]
    # By construction of the synthetic samples: the odd arm solves p1 with one of two.
    np.testing.assert_array_equal(scores.mean("base"), [1, 0])
    np.testing.assert_array_equal(scores.mean("odd"), [1, 0.5])
    np.testing.assert_array_equal(scores.differences("odd", "base"), [0, 0.5])
    assert len(scores.rows()["problem_id"]) == 8


def test_differences_are_over_the_seeds_that_both_have():
    by_arm = {"a": {0: np.array([1.0]), 1: np.array([0.0])}, "b": {1: np.array([1.0]), 2: np.array([0.0])}}
    scores = ProblemScores(["p"], by_arm)
    assert scores.paired_seeds("a", "b") == [1]
    np.testing.assert_array_equal(scores.differences("a", "b"), [-1])
    np.testing.assert_array_equal(scores.differences("b", "b"), [0])
    assert np.isnan(ProblemScores(["p"], {"a": by_arm["a"], "b": {}}).differences("a", "b")).all()


def test_a_mean_leaves_out_what_is_not_known():
    np.testing.assert_array_equal(mean_of_known([[1, NAN, NAN], [0, 0.5, NAN]], 3), [0.5, 0.5, NAN])


def test_cells_without_samples_are_left_out(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1)
    (sweep.cells[1].path / "evals.parquet").unlink()
    scores = problem_scores(read_measurements(sweep))
    assert list(scores.by_arm) == ["base"]
    assert problem_table(analyse(sweep)) is None


def test_the_table_has_the_widest_range_first_and_leaves_out_what_did_not_change(tmp_path):
    analysis = analyse(write_sweep(tmp_path, ARMS, seeds=2))
    by_arm = {"base": {0: np.array([0.5, 0.2, 0.9])}, "odd": {0: np.array([0.5, 0.3, 0.4])}}
    vars(analysis)["problems"] = ProblemScores(["same", "little", "much"], by_arm)
    table = problem_table(analysis)
    assert table is not None
    assert table.columns == ["problem", "range (pp)", "base (n = 1)", "odd (n = 1)"]
    assert table.rows == [["much", "50", "90%", "40%"], ["little", "10", "20%", "30%"]]


def test_arms_that_solve_the_same_have_no_table(tmp_path):
    assert problem_table(analyse(write_sweep(tmp_path, {"base": 0.0, "odd": 0.0}, seeds=1, texts=["only"]))) is None


def test_final_samples_of_another_task_are_not_mixed_in(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1, other_tasks=["gsm8k"])
    (measurement,) = read_measurements(sweep)["base"]
    assert measurement.final_samples is not None
    assert measurement.final_samples.num_rows == 4
    other = measurement.on_task("gsm8k")
    assert other.final_samples is not None and other.final_samples.num_rows == 0
    assert other.score_pp == pytest.approx(measurement.score_pp)
