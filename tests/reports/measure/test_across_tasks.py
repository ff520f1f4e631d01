from __future__ import annotations

import json
import math
from typing import Any

import pytest

from reports.measure import analyse
from reports.measure.across_tasks import contrasts_by_task
from reports.page.document import report_document
from reports.page.tables import across_tasks_table
from reports.statistics import interquartile_mean
from tests.reports.rewriting import add_tasks, rewrite_rows
from tests.reports.synthetic import TASK, write_sweep

pytestmark = pytest.mark.slow

TASKS = [TASK, "second", "third"]
SHIFTS = {"second": -0.2, "third": 0.1}


@pytest.fixture
def sweep(tmp_path):
    written = write_sweep(tmp_path, {"base": 0.0, "up": 8.0}, seeds=6, tasks=TASKS)
    add_tasks(written, SHIFTS)
    return written


def test_a_better_arm_improves_on_every_task(sweep):
    arms: list[Any] = report_document(analyse(sweep)).across_tasks
    base, up = arms
    scores = [
        100 * row["metrics"]["pass@1"]
        for cell in sweep.cells
        for row in cell.read_scores()
        if row["final"] and cell.arm == "up"
    ]
    assert len(scores) == 18
    assert up.iqm_pp == pytest.approx(interquartile_mean(scores))
    assert up.iqm_low_pp < up.iqm_pp < up.iqm_high_pp
    assert up.improvement == 1 and 0.5 < up.improvement_low < up.improvement_high < 1
    assert base.improvement is None
    assert up.seeds == [0, 1, 2, 3, 4, 5]


def test_two_tasks_are_too_few(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=2, tasks=TASKS[:2])
    add_tasks(sweep, {"second": 0.1})
    assert report_document(analyse(sweep)).across_tasks == []
    assert across_tasks_table([]) is None


def test_a_run_without_a_score_on_every_task_is_left_out(sweep):
    def lose(row):
        bad = row["task"] == "third" and row["final"]
        return row | {"metrics": row["metrics"] | {"pass@1": math.nan if bad else row["metrics"]["pass@1"]}}

    rewrite_rows(sweep, "scores.jsonl", lose, arm="base")
    (up,) = report_document(analyse(sweep)).across_tasks
    assert (up.arm, up.improvement) == ("up", None)


def test_two_runs_an_arm_have_numbers_and_no_interval(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 8.0}, seeds=2, tasks=TASKS)
    add_tasks(sweep, SHIFTS)
    found = report_document(analyse(sweep)).across_tasks
    assert found[1].iqm_low_pp is None and found[1].improvement_low is None
    table = across_tasks_table(found)
    assert table is not None
    assert table.rows[1][2:] == ["–", "1.00", "–", "2"]


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


def test_what_a_search_left_open_counts_on_the_task_that_it_searched_on(tmp_path):
    found = {"digest": "", "trial": 1, "values": {}, "search_pp": 81.0, "default_pp": 70.0, "complete": 7,
             "generated_tokens": 5000, "at_end": [], "short_pp": 0.2, "short_sd_pp": 9.0}  # fmt: skip
    tuning = {"knobs": ["lr"], "trials": 8, "seeds": [9], "searches": {}, "arms": {"base": found, "up": found}}
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 8.0}, other_tasks=["gsm8k"], tuning=tuning)
    compared, other = contrasts_by_task(analyse(sweep)).values()
    assert compared[0].bests is not None and compared[0].verdict == "inconclusive"
    assert other[0].bests is None and other[0].verdict == "better"
