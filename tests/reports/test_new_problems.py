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
from reports.analysis import analyse
from reports.document import report_document
from reports.new_problems import problem_scores_pp
from reports.statistics import crossed_bootstrap
from reports.summary import verdict_details
from tests.reports.synthetic import STEPS, TASK, write_sweep

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


def contrast(folder: Path, **fields: Any) -> tuple[dict[str, Any], dict[tuple[str, int], list[int]]]:
    given: dict[str, Any] = {"seeds": 4, "new_problems": True} | fields
    sweep = write_sweep(folder, {"base": 0.0, "up": 2.0}, **given)
    counts = write_samples(sweep)
    return report_document(analyse(sweep))["contrasts"][0], counts


def test_the_interval_is_that_of_seeds_and_problems(tmp_path):
    row, counts = contrast(tmp_path)
    table = [np.subtract(counts["up", seed], counts["base", seed]) * 100 / SAMPLES for seed in range(4)]
    expected = crossed_bootstrap(np.array(table))
    found = row["new_problems"]
    assert found["difference_pp"] == pytest.approx(expected.difference)
    assert (found["low_pp"], found["high_pp"]) == pytest.approx((expected.low, expected.high))
    assert (found["level"], found["n_seeds"], found["n_problems"], found["refused"]) == (0.95, 4, PROBLEMS, None)
    (sentence,) = (detail for detail in verdict_details(row) if "new problems" in detail)
    assert "95% interval [" in sentence and "4 seeds and 20 problems" in sentence
    assert "It is conservative" in sentence and "its t has the 3 degrees of freedom" in sentence


def test_it_is_given_only_where_the_sweep_asks_for_it(tmp_path):
    row, _ = contrast(tmp_path, new_problems=False)
    assert row["new_problems"] is None
    assert not any("new problems" in detail for detail in verdict_details(row))


def test_pass_at_k_of_a_problem(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1, metric="eval.final.pass@4")
    counts = write_samples(sweep)["base", 0]
    scores = problem_scores_pp(analyse(sweep).measurements["base"][0])
    expected = [100 * (1 - math.comb(SAMPLES - c, 4) / math.comb(SAMPLES, 4)) for c in counts]
    assert [scores[f"p{i:02}"] for i in range(PROBLEMS)] == pytest.approx(expected)


def test_below_three_seeds_there_is_no_interval(tmp_path):
    row, _ = contrast(tmp_path, seeds=2)
    assert row["new_problems"]["low_pp"] is None
    (sentence,) = (detail for detail in verdict_details(row) if "new problems" in detail)
    assert "interval –" in sentence and "conservative" not in sentence


@pytest.mark.parametrize("problems", [1, 4])
def test_few_problems_are_refused(tmp_path, problems):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 2.0}, seeds=4, new_problems=True)
    write_samples(sweep, problems)
    (row,) = report_document(analyse(sweep))["contrasts"]
    assert row["new_problems"]["low_pp"] is None
    why = f"takes at least 5 of them with a pass@1 in every run, not {problems}"
    assert f"Over new problems: refused, an interval over problems {why}." in verdict_details(row)


def test_five_problems_are_enough(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 2.0}, seeds=4, new_problems=True)
    write_samples(sweep, 5)
    (row,) = report_document(analyse(sweep))["contrasts"]
    assert row["new_problems"]["low_pp"] is not None


def test_differences_that_are_all_equal_have_no_spread(tmp_path):
    """Every run gets the samples of the first."""
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 2.0}, seeds=4, new_problems=True)
    write_samples(sweep)
    for cell in sweep.cells[1:]:
        shutil.copy(sweep.cells[0].path / "evals.parquet", cell.path / "evals.parquet")
    (row,) = report_document(analyse(sweep))["contrasts"]
    (sentence,) = (detail for detail in verdict_details(row) if "new problems" in detail)
    assert sentence.endswith(": +0.0 pp, no spread over 4 seeds and 20 problems.")


@pytest.mark.parametrize(("metric", "keep"), [("eval.final.pass@1", False), ("eval.final.maj@2", True)])
def test_without_the_scores_of_single_problems_it_is_refused(tmp_path, metric, keep):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 2.0}, seeds=3, new_problems=True, metric=metric)
    for cell in sweep.cells:
        if not keep:
            (cell.path / "evals.parquet").unlink()
    (row,) = report_document(analyse(sweep))["contrasts"]
    assert row["new_problems"]["refused"] and row["new_problems"]["difference_pp"] is None
    assert any("Over new problems: refused" in detail for detail in verdict_details(row))


def test_seeds_that_do_not_pair_have_none(tmp_path):
    gone = {("base", 0): {"state": "failed"}, ("up", 1): {"state": "failed"}}
    row, _ = contrast(tmp_path, seeds=2, changes=gone)
    assert row["new_problems"]["refused"] == "no seed has a score in both arms"
