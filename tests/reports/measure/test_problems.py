from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.records import SweepRecord
from reports.measure import analyse
from reports.measure.flips import problem_ranges, ranges_rows
from reports.measure.measurements import read_measurements
from reports.measure.problems import ProblemScores, problem_scores
from reports.page.document import report_document
from reports.page.tables import problem_table
from reports.page.verdict import verdict_details
from reports.report import Report
from reports.statistics import over_seeds_and_problems
from tests.frozen import frozen
from tests.reports.synthetic import STEPS, TASK, write_sweep

pytestmark = pytest.mark.slow

ARMS = {"base": 0.0, "odd": 1.0}


def test_shares_of_right_samples_by_problem(tmp_path):
    scores = problem_scores(analyse(write_sweep(tmp_path, ARMS, seeds=2)))
    assert scores.problems == ["p0", "p1"]
    # By construction of the synthetic samples: the odd arm solves p1 with one of two.
    np.testing.assert_array_equal(scores.mean("base"), [1, 0])
    np.testing.assert_array_equal(scores.mean("odd"), [1, 0.5])
    np.testing.assert_array_equal(scores.differences("odd", "base"), [0, 0.5])
    table = pa.table(scores.columns())
    assert [tuple(row.values()) for row in table.to_pylist()][:3] == [
        ("base", 0, "p0", 1.0),
        ("base", 0, "p1", 0.0),
        ("base", 1, "p0", 1.0),
    ]
    assert len(table) == 8


def test_differences_are_over_the_seeds_that_both_have():
    by_arm = {"a": {0: np.array([1.0]), 1: np.array([0.0])}, "b": {1: np.array([1.0]), 2: np.array([0.0])}}
    scores = ProblemScores(["p"], by_arm)
    assert scores.paired_seeds("a", "b") == [1]
    np.testing.assert_array_equal(scores.differences("a", "b"), [-1])
    np.testing.assert_array_equal(scores.differences("b", "b"), [0])
    assert np.isnan(ProblemScores(["p"], {"a": by_arm["a"], "b": {}}).differences("a", "b")).all()


def test_cells_without_samples_are_left_out(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1)
    (sweep.cells[1].path / "evals.parquet").unlink()
    scores = problem_scores(analyse(sweep))
    assert list(scores.by_arm) == ["base"]
    assert problem_ranges(analyse(sweep)) is None


def test_the_table_has_the_widest_range_first_and_leaves_out_what_did_not_change(tmp_path):
    analysis = analyse(write_sweep(tmp_path, ARMS, seeds=8))
    by_arm = {
        "base": dict.fromkeys(range(8), np.array([0.5, 0.2, 0.9])),
        "odd": dict.fromkeys(range(8), np.array([0.5, 0.3, 0.4])),
    }
    analysis.known["reports.measure.problems.problem_scores"] = ProblemScores(["same", "little", "much"], by_arm)
    table = problem_table(analysis, Report(problem_ranges=ranges_rows(analysis)))
    assert table is not None
    assert len(table.columns) == 5
    assert [[row[0], row[1], *row[3:]] for row in table.rows] == [
        ["much", "50.0", "90%", "40%"],
        ["little", "10.0", "20%", "30%"],
    ]


def test_final_samples_of_another_task_are_not_mixed_in(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1, other_tasks=["gsm8k"])
    (measurement,) = read_measurements(sweep)["base"]
    assert measurement.final_samples is not None
    assert measurement.final_samples.n_samples == 4
    other = measurement.on_task("gsm8k")
    assert other.final_samples is not None and other.final_samples.n_samples == 0
    assert other.score_pp == pytest.approx(measurement.score_pp)


PROBLEMS, SAMPLES = 20, 8


def write_samples(sweep: SweepRecord, problems: int = PROBLEMS) -> dict[tuple[str, int], list[int]]:
    """Final samples of so many problems a cell, the same problems in all; returns right ones by problem."""
    counts = {}
    for cell in sweep.cells:
        rng = np.random.default_rng([cell.seed, len(cell.arm)])
        counts[cell.arm, cell.seed] = right = rng.integers(0, SAMPLES + 1, problems).tolist()
        rows = [
            {"step": step, "final": final, "task": task, "problem_id": f"p{i:02}", "text": "", "sample": sample}
            | {"n_tokens": 1, "correct": final and task == TASK and sample < right[i], "verdicts": '{"math": true}'}
            for step, final, task in ((STEPS, True, TASK), (STEPS, True, "other"), (8, False, TASK))
            for i in range(problems)
            for sample in range(SAMPLES)
        ]
        extra = {"truncated": False, "extracted": "", "faulty_steps": None}
        pyarrow.parquet.write_table(pa.Table.from_pylist([row | extra for row in rows]), cell.path / "evals.parquet")
    return counts


def contrast(folder: Path, **fields: Any) -> tuple[Any, dict[tuple[str, int], list[int]]]:
    given: dict[str, Any] = {"seeds": 4, "new_problems": True} | fields
    sweep = write_sweep(folder, {"base": 0.0, "up": 2.0}, **given)
    counts = write_samples(sweep)
    return contrast_of(sweep), counts


def contrast_of(sweep: SweepRecord) -> Any:
    (row,) = report_document(analyse(sweep)).contrasts
    return row


def test_the_interval_is_that_of_seeds_and_problems(tmp_path):
    row, counts = contrast(tmp_path)
    table = [np.subtract(counts["up", seed], counts["base", seed]) * 100 / SAMPLES for seed in range(4)]
    expected = over_seeds_and_problems(np.array(table))
    found = row.new_problems
    assert found.difference_pp == pytest.approx(expected.difference)
    assert (found.low_pp, found.high_pp) == pytest.approx((expected.low, expected.high))
    assert (found.level, found.n_seeds, found.n_problems, found.refused) == (0.95, 4, PROBLEMS, None)


def sentence_of(row: Any) -> str:
    (sentence,) = (detail for detail in verdict_details(row) if "new problems" in detail)
    return sentence


def test_pass_at_k_of_a_problem(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1, metric="eval.final.pass@4")
    counts = write_samples(sweep)["base", 0]
    scores = analyse(sweep).measurements["base"][0].problem_scores_pp
    expected = [100 * (1 - math.comb(SAMPLES - c, 4) / math.comb(SAMPLES, 4)) for c in counts]
    assert [scores[f"p{i:02}"] for i in range(PROBLEMS)] == pytest.approx(expected)


def test_what_has_no_interval_over_new_problems_says_why(tmp_path):
    """One of each kind, and one that has an interval."""
    given: dict[str, Any] = {"seeds": 4, "new_problems": True}
    gone = {("base", 0): {"state": "failed"}, ("up", 1): {"state": "failed"}}
    cases: dict[str, dict[str, Any]] = {
        "five problems": {},
        "four problems": {},
        "one problem": {},
        "equal samples": {},
        "two seeds": {"seeds": 2},
        "no pair": {"seeds": 2, "changes": gone},
        "no samples": {},
        "no score of single problems": {"metric": "eval.final.maj@2"},
    }
    found, lines = {}, []
    for name, fields in cases.items():
        sweep = write_sweep(tmp_path / name, {"base": 0.0, "up": 2.0}, **given | fields)
        write_samples(sweep, {"five": 5, "four": 4, "one": 1}.get(name.split()[0], PROBLEMS))
        for cell in sweep.cells[1:]:
            if name == "equal samples":
                shutil.copy(sweep.cells[0].path / "evals.parquet", cell.path / "evals.parquet")
            if name == "no samples":
                (cell.path / "evals.parquet").unlink(missing_ok=True)
        row = contrast_of(sweep)
        found[name] = row.new_problems.low_pp is not None
        lines.append(f"{name}: {sentence_of(row)}")
    assert found == {name: name == "five problems" for name in cases}
    frozen("reports/new_problems", "\n".join(lines))
