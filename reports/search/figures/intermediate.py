"""What trials reported while they trained, from which pruning decides."""

from __future__ import annotations

from typing import Any

from harness.records.study import StudyRecord, TrialRecord
from reports.figures.lines import legend_below
from reports.figures.style import GREY, INK, WIDTH_IN, Drawing
from reports.search.figures import SearchFigure
from reports.search.figures.marks import BLUE, MARKS, VERMILION, best_label, count_kinds, kind_of, label_values
from reports.search.objectives import Objective

COLORS = {"complete": BLUE, "pruned": VERMILION, "failed": VERMILION, "running": GREY}
DOTTED = (0, (1.5, 1.5))


def draw_intermediate(study: StudyRecord, objective: Objective) -> Drawing | None:
    """None if nothing was reported."""
    from matplotlib.figure import Figure

    # A repeated setting has the curve of the trial whose cells it shares.
    curves = {trial.number: curve for trial in study.trials if trial.same_as is None and (curve := _curve(trial))}
    if not curves:
        return None
    trials = [trial for trial in study.trials if trial.number in curves]
    figure = Figure(figsize=(WIDTH_IN, 3.8), layout="constrained")
    axes = figure.subplots()
    handles = {}
    for trial in sorted(trials, key=lambda trial: (trial.number == study.best, trial.is_default, trial.number)):
        steps, values = zip(*curves[trial.number], strict=True)
        ys = [objective.shown(value) for value in values]
        is_best = trial.number == study.best
        kind, color = kind_of(trial), INK if is_best else COLORS[trial.state]
        style: dict[str, Any]
        if is_best:
            style = {"linewidth": 2.4, "label": best_label(trial.number)}
        elif kind == "default":
            style = {"linewidth": 1.6, "linestyle": (0, (5, 2)), "label": kind}
            color = MARKS["default"].color
        else:
            style = {"linewidth": 0.9, "alpha": 0.75, "label": kind}
            style |= {"linestyle": DOTTED} if trial.state == "running" else {}
        (line,) = axes.plot(steps, ys, color=color, zorder=3 if is_best else 2, **style)
        if len(steps) == 1 and trial.state == "complete":
            line.set(marker="o", markersize=3)
        if trial.state in ("pruned", "failed"):
            axes.plot(steps[-1], ys[-1], **MARKS[trial.state].drawn(), zorder=4)
            line.set(marker=MARKS[trial.state].marker, markersize=5, markevery=[len(steps) - 1])
        handles[str(line.get_label())] = line
    axes.margins(x=0.03)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)
    by_seed = study.pruner["type"] == "wilcoxon"
    told = "of each seed" if by_seed else "while training"
    axes.set(xlabel="training seed" if by_seed else "step", ylabel=f"{objective.name} {told}{objective.unit}")
    label_values(axes.yaxis, objective)
    legend_below(figure, [*handles.values()])
    silent = len(study.trials) - len(trials)
    what = "What each seed of a trial came to" if by_seed else "What trials reported while they trained"
    caption = (
        f"{what}, n = {len(trials)} ({count_kinds(trials)}); {objective.wish}. A"
        " pruned trial ends with a cross, a failed one with a bar."
        f"{f' Of {len(study.trials)} trials {silent} reported nothing of their own.' if silent else ''} No smoothing."
    )
    rows: list[dict[str, str | int | float]] = [
        {"trial": trial.number, "kind": kind_of(trial), "step": step, "value": value}
        for trial in trials
        for step, value in curves[trial.number]
    ]
    return Drawing(figure, caption, rows)


def _curve(trial: TrialRecord) -> list[tuple[int, float]]:
    return [(step, value) for step, value in trial.intermediate if value is not None]


INTERMEDIATE = SearchFigure(name="intermediate", title="Learning curves of trials", draw=draw_intermediate, order=60)
