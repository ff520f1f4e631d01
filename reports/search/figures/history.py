"""The value of each trial in the order of the search, with the best so far."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records.study import StudyRecord, TrialRecord
from reports.figures.lines import legend_below
from reports.figures.style import INK, WIDTH_IN, Drawing
from reports.search.counting import count
from reports.search.figures import SearchFigure
from reports.search.figures.marks import axis_label, count_kinds, draw_trials, kind_of, label_values
from reports.search.objectives import Objective, complete_trials

# Of the height of the axes: a strip for trials without a value, and where in it they are marked.
STRIP, STRIP_Y = 0.1, 0.035


def draw_history(study: StudyRecord, objective: Objective) -> Drawing | None:
    """None if no trial has a value."""
    from matplotlib.figure import Figure

    trials = sorted(study.trials, key=lambda trial: trial.number)
    values = [_value(trial, objective) for trial in trials]
    valued = [(trial, objective.shown(value)) for trial, value in zip(trials, values, strict=True) if value is not None]
    without = [trial for trial, value in zip(trials, values, strict=True) if value is None]
    if not valued:
        return None
    figure = Figure(figsize=(WIDTH_IN, 3.8), layout="constrained")
    axes = figure.subplots()
    handles = {}
    best = _best_so_far(study, objective)
    if best:
        numbers = [*(number for number, _ in best), trials[-1].number]
        levels = [*(value for _, value in best), best[-1][1]]
        (handles["best so far"],) = axes.plot(
            numbers, levels, color=INK, linewidth=1.2, drawstyle="steps-post", label="best so far", zorder=1
        )
    shown, ys = [trial for trial, _ in valued], [value for _, value in valued]
    handles |= draw_trials(axes, shown, [trial.number for trial in shown], ys, study.best)
    axes.margins(y=0.08)
    low, high = axes.get_ylim()
    if without:
        axes.set_ylim(low - STRIP * (high - low), high)
        xs, heights = [trial.number for trial in without], len(without) * [STRIP_Y]
        handles |= draw_trials(axes, without, xs, heights, None, transform=axes.get_xaxis_transform())
    room = 0.03 * (trials[-1].number - trials[0].number) + 0.5
    axes.set_xlim(trials[0].number - room, trials[-1].number + room)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set(xlabel="trial", ylabel=axis_label(objective))
    label_values(axes.yaxis, objective)
    legend_below(figure, [*handles.values()])
    caption = (
        f"Value of each trial, n = {len(trials)} ({count_kinds(trials)}), {count(len(study.seeds), 'seed')} each;"
        f" {objective.wish}. Line: best of the complete ones so far; it can"
        f" only {'rise' if objective.maximize else 'fall'}, and by luck too. {_others(trials, valued, without)}"
    )
    rows = [_row(trial, objective, value) for trial, value in zip(trials, values, strict=True)]
    return Drawing(figure, caption.strip(), rows)


def _value(trial: TrialRecord, objective: Objective) -> float | None:
    """The final value, or the last that a pruned trial reported."""
    if trial.state == "complete":
        return objective.of(trial)
    if trial.state == "pruned" and objective.index == 0:
        return next((value for _, value in reversed(trial.intermediate) if value is not None), objective.of(trial))
    return None


def _best_so_far(study: StudyRecord, objective: Objective) -> list[tuple[int, float]]:
    """Trials that were better than all complete ones before them, with their values as shown."""
    best: list[tuple[int, float]] = []
    for trial in complete_trials(study):
        value = objective.of(trial)
        if value is not None and (not best or objective.better(objective.shown(value), best[-1][1])):
            best.append((trial.number, objective.shown(value)))
    return best


def _others(
    trials: Sequence[TrialRecord], valued: Sequence[tuple[TrialRecord, float]], without: Sequence[TrialRecord]
) -> str:
    words = []
    if any(trial.state == "pruned" for trial, _ in valued):
        words.append("Pruned trials at the last value that they reported, of a training cut short.")
    if without:
        words.append(f"At the bottom, without a value: {count_kinds(without)}.")
    return " ".join(words)


def _row(trial: TrialRecord, objective: Objective, value: float | None) -> dict[str, str | int | float]:
    row: dict[str, str | int | float] = {"trial": trial.number, "kind": kind_of(trial), "metric": objective.metric}
    return row if value is None else row | {"value": value}


HISTORY = SearchFigure(name="history", title="History of the search", draw=draw_history, each_objective=True, order=20)
