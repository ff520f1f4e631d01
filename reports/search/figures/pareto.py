"""Two objectives against each other: what the one costs in the other."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records.study import StudyRecord, TrialRecord
from reports.figures.lines import legend_below
from reports.figures.style import GREY, WIDTH_IN, Drawing
from reports.search.counting import count
from reports.search.figures import SearchFigure
from reports.search.figures.marks import axis_label, count_kinds, draw_trials, kind_of, label_values
from reports.search.objectives import Objective, complete_trials, objectives_of

# Of the figure: about the size of the axes, and of a label with a trial's number.
AXES_IN = (5.4, 2.9)
LABEL_IN = (0.3, 0.17)


def draw_pareto(study: StudyRecord, objective: Objective) -> Drawing | None:
    """The first objective against the second. None with one objective, or without a complete trial."""
    from matplotlib.figure import Figure

    trials = complete_trials(study)
    if len(study.objectives) == 1 or not trials:
        return None
    cost = objectives_of(study)[1]
    points = {
        trial.number: (cost.shown(x), objective.shown(y))
        for trial in trials
        if (x := cost.of(trial)) is not None and (y := objective.of(trial)) is not None
    }
    figure = Figure(figsize=(WIDTH_IN, 3.9), layout="constrained")
    axes = figure.subplots()
    front = sorted(points[number] for number in study.front)
    handles = {}
    if len(front) > 1:
        (handles["front"],) = axes.plot(
            *zip(*front, strict=True),
            color=GREY,
            linewidth=1.4,
            # Along what is reached: with no more of the second objective than the trial before, or no less.
            drawstyle="steps-pre" if cost.maximize else "steps-post",
            label="front",
            zorder=1,
        )
    handles |= draw_trials(axes, trials, *_columns(points), study.best)
    axes.margins(0.1)
    labelled = _labelled(study, points)
    for number in labelled:
        # Towards what nobody reached, where no other trial lies.
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
    caption = (
        f"{objective.name} ({objective.wish}) against {cost.name} ({cost.wish}), n = {len(trials)} complete trials"
        f" ({count_kinds(trials)}). Line and numbers: the {count(len(front), 'trial')} of the front, which no other"
        " beats on both; values as they are, nothing is tested."
        f"{'' if len(labelled) == len(front) else ' Of neighbours on it one has its number.'}"
    )
    return Drawing(figure, caption, [_row(trial, study, cost, objective) for trial in trials])


def _columns(points: dict[int, tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points.values()], [y for _, y in points.values()]


def _labelled(study: StudyRecord, points: dict[int, tuple[float, float]]) -> Sequence[int]:
    """Trials of the front whose numbers do not run into each other's, the best first."""
    spans = [max(values) - min(values) or 1.0 for values in _columns(points)]
    chosen: list[int] = []
    for number in sorted(study.front, key=lambda number: (number != study.best, points[number])):
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


def _row(trial: TrialRecord, study: StudyRecord, cost: Objective, objective: Objective) -> dict[str, str | int | float]:
    row: dict[str, str | int | float] = {"trial": trial.number, "kind": kind_of(trial)}
    row |= {one.metric: value for one in (objective, cost) if (value := one.of(trial)) is not None}
    return row | {"on_front": int(trial.number in study.front)}


PARETO = SearchFigure(name="pareto", title="Pareto front", draw=draw_pareto, order=10)
