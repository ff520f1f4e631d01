from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.records import SweepRecord
from reports.analysis import analyse
from reports.document import report_document
from reports.law_tables import law_tables
from reports.measurements import Row
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import TASK, write_sweep


def curve(tokens: float) -> float:
    return 0.35 + 0.4 / (1 + math.pow(40_000 / tokens, 1.5))


def rows(sweep: SweepRecord) -> list[Row]:
    return [row for row in report_document(analyse(sweep))["laws"] if row["law"] == "compute"]


def with_many_evaluations(folder: Path, arms: Mapping[str, float]) -> SweepRecord:
    """Ten evaluations a run, on a sigmoid that starts at the score before training."""
    sweep = write_sweep(folder, arms, seeds=2)
    for cell in sweep.cells:
        (first, *_) = cell.read_scores()
        evaluations = [
            first | {"step": 4 * i, "generated_tokens": 20_000 * i, "final": i == 10}
            | {"metrics": {"pass@1": curve(20_000 * i)}}
            for i in range(1, 11)
        ]  # fmt: skip
        (cell.path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    return sweep


def test_the_sigmoid_is_found_from_the_score_before_training(tmp_path):
    base, up = rows(with_many_evaluations(tmp_path, {"base": 0.0, "up": 0.0}))
    for row in (base, up):
        assert row["refused"] is None
        assert row["start"] == 35
        assert row["asymptote"] == pytest.approx(75, abs=0.1)
        assert row["midpoint_tokens"] == pytest.approx(40_000, rel=0.01)
        assert row["exponent"] == pytest.approx(1.5, rel=0.01)
        assert (row["n_runs"], row["n_points"], row["target"]) == (2, 20, f"pass@1 of {TASK}")


def test_the_same_few_checkpoints_in_many_seeds_are_no_curve(tmp_path):
    (row,) = found = rows(write_sweep(tmp_path, {"base": 0.0}, seeds=6))
    assert row["refused"] == "4 evaluations a run, and a fit needs 8"
    assert row["asymptote"] is None
    (table,) = law_tables(found)
    assert table.rows == [[f"pass@1 of {TASK}", "Refused: 4 evaluations a run, and a fit needs 8."]]


def test_an_arm_that_generates_nothing_is_refused(tmp_path):
    sweep = with_many_evaluations(tmp_path, {"base": 0.0})
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"generated_tokens": 0})
    (row,) = rows(sweep)
    assert "must be above 0" in row["refused"]
