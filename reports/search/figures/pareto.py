"""Two objectives against each other: what one costs in terms of the other."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records.study import StudyRecord, TrialRecord
from harness.words import said
from reports.drawing.curves import legend_below
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, new_figure
from reports.formats import count
from reports.search.drawing import axis_label, count_kinds, draw_trials, kind_of, label_values
from reports.search.figures import SearchFigure
from reports.search.values import StudyObjective, complete_trials, objectives_of

# Approximate sizes in inches: the axes, and a label with a trial's number.
AXES_IN = (5.4, 2.9)
LABEL_IN = (0.3, 0.17)


def draw_pareto(study: StudyRecord, objective: StudyObjective) -> Drawing | None:
    """Draw the first objective against the second; None if there is one objective or no complete trial."""
    trials = complete_trials(study)
    if len(study.objectives) == 1 or not trials:
        return None
    cost = objectives_of(study)[1]
    points = {
        trial.number: (cost.shown(x), objective.shown(y))
        for trial in trials
        if (x := cost.of(trial)) is not None and (y := objective.of(trial)) is not None
    }
    figure = new_figure(3.9)
    axes = figure.subplots()
    front = sorted(points[number] for number in study.front)
    handles = {}
    if len(front) > 1:
        (handles["front"],) = axes.plot(
            *zip(*front, strict=True),
            color=GREY,
            linewidth=1.4,
            # Between two trials, the line has the level of the trial that meets a bound on the second objective at that
            # point: the left one if less is better, the right one if more is better.
            drawstyle="steps-pre" if cost.maximize else "steps-post",
            label="front",
            zorder=1,
        )
    handles |= draw_trials(axes, trials, *_columns(points), study.best)
    axes.margins(0.1)
    labelled = _labelled(study, points)
    for number in labelled:
        # Labels point away from the trials: towards values that no trial reached.
        side, above = (1 if cost.maximize else -1), (1 if objective.maximize else -1)
        axes.annotate(
            str(number),
            points[number],
            xytext=(5 * side, 5 * above),
            textcoords="offset points",
            ha="left" if cost.maximize else "right",
            va="bottom" if objective.maximize else "top",
            fontsize=8,
        )
    axes.set(xlabel=axis_label(cost), ylabel=axis_label(objective))
    label_values(axes.xaxis, cost)
    label_values(axes.yaxis, objective)
    legend_below(figure, [*handles.values()])
    caption = said(
        "reports.against_n_complete_trials",
        name=objective.name,
        wish=objective.wish,
        name_2=cost.name,
        wish_2=cost.wish,
        n_trials=len(trials),
        count_kinds=count_kinds(trials),
        n_front=count(len(front), "trial"),
        words="" if len(labelled) == len(front) else said("reports.close_neighbours_only_one"),
    )
    return Drawing(figure, caption, [_row(trial, study, cost, objective) for trial in trials])


def _columns(points: dict[int, tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points.values()], [y for _, y in points.values()]


def _labelled(study: StudyRecord, points: dict[int, tuple[float, float]]) -> Sequence[int]:
    """Return the trials of the front whose labels do not overlap, best first."""
    spans = [max(values) - min(values) or 1.0 for values in _columns(points)]
    chosen: list[int] = []
    for number in sorted(study.front, key=lambda number: (number != study.best, points[number])):
        # Labels overlap if they are closer than a label's size in both directions. Distances are scaled to inches.
        near = [
            all(
                abs(one - other) / span * size < label
                for one, other, span, size, label in zip(
                    points[number], points[taken], spans, AXES_IN, LABEL_IN, strict=True
                )
            )
            for taken in chosen
        ]
        if not any(near):
            chosen.append(number)
    return chosen


def _row(trial: TrialRecord, study: StudyRecord, cost: StudyObjective, objective: StudyObjective) -> DataRow:
    row: DataRow = {"trial": trial.number, "kind": kind_of(trial)}
    row |= {one.metric: value for one in (objective, cost) if (value := one.of(trial)) is not None}
    return row | {"on_front": int(trial.number in study.front)}


PARETO = SearchFigure(name="pareto", title="Pareto front", draw=draw_pareto, order=10)
