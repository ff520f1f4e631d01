from __future__ import annotations

import json

import pytest

from reports.analysis import analyse
from reports.benchmarks import contrasts_by_task
from tests.reports.synthetic import write_sweep


def test_every_task_is_compared_and_the_compared_one_comes_first(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=3, other_tasks=["gsm8k"])
    for cell in sweep.cells:
        rows = [
            row
            | {
                "metrics": row["metrics"]
                | ({"pass@1": 0.25 + 0.1 * (cell.arm == "up")} if row["task"] == "gsm8k" else {})
            }
            for row in cell.read_scores()
        ]
        (cell.path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    analysis = analyse(sweep)
    by_task = contrasts_by_task(analysis)
    assert list(by_task) == ["arithmetic", "gsm8k"]
    assert by_task["arithmetic"] == analysis.contrasts
    assert by_task["gsm8k"][0].differences_pp == pytest.approx([10, 10, 10])


def test_a_task_that_no_pair_was_scored_on_is_left_out(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=1, tasks=["arithmetic", "gsm8k"])
    assert list(contrasts_by_task(analyse(sweep))) == ["arithmetic"]
