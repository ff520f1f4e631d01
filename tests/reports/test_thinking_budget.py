"""The figure of accuracy against thinking budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.thinking_budget import draw_thinking_budgets, write_thinking_budgets


def evaluation(task: str, budget: int | None, accuracy: float, error_pp: float | None = 2.0) -> dict[str, Any]:
    return {
        "task": task,
        "thinking_budget_tokens": budget,
        "n_problems": 30,
        "n_samples": 4,
        "path": f"evals/m/{task}-{budget}",
        "metrics": {"avg@n": accuracy, "se_problems_pp": error_pp, "mean_tokens": 0.8 * (budget or 1)},
    }


@pytest.mark.slow
def test_points_are_accuracies_by_budget() -> None:
    found = [evaluation("aime24", 4096, 0.5), evaluation("aime24", 1024, 0.25), evaluation("aime24", None, 0.9)]
    drawing = draw_thinking_budgets("some model", found)
    assert drawing is not None
    assert [(row["thinking_budget_tokens"], row["avg_at_n_pp"]) for row in drawing.rows] == [(1024, 25.0), (4096, 50.0)]
    (axes,) = drawing.figure.axes
    assert axes.get_xscale() == "linear"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1,024", "4,096"]


@pytest.mark.parametrize("budgets", [[], [None], [1024], [None, 1024]])
def test_one_budget_is_no_curve(budgets: list[int | None]) -> None:
    assert draw_thinking_budgets("m", [evaluation("t", budget, 0.5) for budget in budgets]) is None


@pytest.mark.slow
def test_the_same_scores_give_the_same_files(tmp_path: Path) -> None:
    found = [evaluation("t", budget, 0.1, error_pp=None) for budget in (10, 20)]
    files = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        path = write_thinking_budgets("m", found, folder)
        assert path is not None and path.parent == folder
        files.append((path.read_bytes(), path.with_suffix(".png").read_bytes()))
    assert files[0] == files[1]
    other = write_thinking_budgets("m", [evaluation("other", budget, 0.1) for budget in (10, 20)], tmp_path / "a")
    assert other is not None and len(list((tmp_path / "a").glob("*.svg"))) == 2
