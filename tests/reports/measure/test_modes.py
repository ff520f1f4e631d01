"""Modes of thinking on the page: accuracy, tokens and budgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.figures import FIGURES
from reports.measure import analyse
from reports.measure.modes import mode_scores
from reports.page.tables import mode_table
from tests.reports.synthetic import write_sweep

TASKS = ["think8:arithmetic", "direct:arithmetic", "other", "think12:arithmetic"]


def test_each_arm_has_its_modes_from_no_thinking_to_most(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 5.0}, seeds=3, other_tasks=TASKS)
    analysis = analyse(sweep)
    found = mode_scores(analysis)
    assert [(one.arm, one.mode, one.budget_tokens) for one in found[:5]] == [
        ("base", "direct", None),
        ("base", "think", 8),
        ("base", "think", 12),
        ("base", "think", None),
        ("up", "direct", None),
    ]
    assert len(found) == 8 and {one.task for one in found} == {"arithmetic"}, "`other` has one mode"
    first, plain = found[0], analysis.arm("base")
    assert found[3].mean_pp == pytest.approx(plain.mean_pp)
    assert (found[3].low_pp, found[3].high_pp, found[3].tokens) == (plain.low_pp, plain.high_pp, plain.mean_tokens)
    assert first.n == 3 and found[4].mean_pp == pytest.approx(first.mean_pp + 5.0, abs=0.5)
    table = mode_table(found)
    modes = ["direct", "think, at most 8", "think, at most 12", "think"]
    assert table is not None and table.columns == ["arm", *(f"{mode} (95% interval)" for mode in modes)]
    assert [row[0] for row in table.rows] == ["base", "up"]
    assert table.rows[0][4].endswith(f"/ {found[3].tokens:.3g}")
    drawing = FIGURES.find("thinking_budgets").draw(analysis)
    assert drawing is not None
    rows = [row for row in drawing.rows if row["arm"] == "up" and row["seed"] == 2]
    expected = [one.on_task(task).score_pp for one in analysis.measurements["up"][2:3] for task in (TASKS[0], TASKS[3])]
    assert [(row["budget_tokens"], row["score_pp"]) for row in rows] == [(8, expected[0]), (12, expected[1])]


def test_a_sweep_in_one_mode_has_none(tmp_path: Path) -> None:
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 5.0}, seeds=3, other_tasks=["other", "direct:third"]))
    assert mode_scores(analysis) == [] and mode_table([]) is None
    assert FIGURES.find("thinking_budgets").draw(analysis) is None
