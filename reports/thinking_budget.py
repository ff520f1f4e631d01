"""Accuracy against the thinking budget: the figure of `bench eval --thinking-budget`."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.words import said
from reports.drawing.curves import budget_scale, legend_below
from reports.drawing.rendering import DataRow, Drawing, render_figure
from reports.drawing.style import arm_styles, new_figure, short_name

NAME = "thinking_budget"


def draw_thinking_budgets(model: str, evaluations: Iterable[dict[str, Any]]) -> Drawing | None:
    """Draw accuracy against the thinking budget, one curve per task.

    evaluations: the contents of scores.json files of one model.
    None if no task was evaluated under two budgets.
    """
    of_task = defaultdict(list)
    for one in evaluations:
        if one["thinking_budget_tokens"] is not None:
            of_task[one["task"]].append(one)
    curves = {
        task: sorted(found, key=lambda one: one["thinking_budget_tokens"])
        for task, found in of_task.items()
        if len(found) > 1
    }
    if not curves:
        return None
    budgets = sorted({one["thinking_budget_tokens"] for found in curves.values() for one in found})
    styles = arm_styles(list(curves), next(iter(curves)))
    figure = new_figure(3.6)
    axes = figure.subplots()
    handles = []
    rows: list[DataRow] = []
    for task, found in curves.items():
        x = [one["thinking_budget_tokens"] for one in found]
        y = [100 * one["metrics"]["avg@n"] for one in found]
        # A single problem has no standard error.
        errors = [one["metrics"]["se_problems_pp"] or 0.0 for one in found]
        style, first = styles[task], found[0]
        axes.errorbar(x, y, yerr=errors, color=style.color, linestyle="none", elinewidth=1.0, capsize=3)
        label = f"{short_name(task)} ({first['n_problems']} problems x {first['n_samples']})"
        handles += axes.plot(x, y, color=style.color, linestyle=style.dash, marker=style.marker, label=label)
        rows += [
            {
                "task": task,
                "thinking_budget_tokens": one["thinking_budget_tokens"],
                "avg_at_n_pp": value,
                "se_problems_pp": error,
                "mean_tokens": one["metrics"]["mean_tokens"],
            }
            for one, value, error in zip(found, y, errors, strict=True)
        ]
    budget_scale(axes, budgets)
    axes.set(xlabel="thinking budget (tokens)", ylabel="avg@n (%), ±1 SE over problems", title=short_name(model))
    axes.set_ylim(bottom=0)
    legend_below(figure, handles)
    caption = said("reports.mean_accuracy_under_each")
    return Drawing(figure, caption, rows)


def write_thinking_budgets(model: str, evaluations: Iterable[dict[str, Any]], folder: Path) -> Path | None:
    """Write thinking_budget-<hash>.svg and .png into a folder and return the path of the SVG file.

    The hash identifies the set of evaluations. Returns None if there is no curve to draw.
    """
    evaluations = list(evaluations)
    rendered = render_figure(NAME, "", lambda: draw_thinking_budgets(model, evaluations))
    if rendered is None:
        return None
    # Sort, so that the hash does not depend on the order of the evaluations.
    names = sorted(Path(one["path"]).name for one in evaluations)
    path = folder / f"{NAME}-{hashlib.blake2b(' '.join(names).encode(), digest_size=5).hexdigest()}.svg"
    path.write_text(rendered.svg, encoding="utf-8", newline="\n")
    path.with_suffix(".png").write_bytes(rendered.png)
    return path
