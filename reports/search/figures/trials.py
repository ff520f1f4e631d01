"""The trials of a search in order, with the best so far, and the values that they reported while training."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records.study import StudyRecord, TrialRecord
from harness.words import said
from reports.drawing.curves import legend_below
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, INK, new_figure
from reports.formats import count
from reports.search.drawing import (
    BLUE,
    MARKS,
    VERMILION,
    axis_label,
    best_label,
    count_kinds,
    draw_trials,
    kind_of,
    label_values,
)
from reports.search.figures import SearchFigure
from reports.search.values import StudyObjective, complete_trials

# As shares of the height of the axes: the strip for trials without a value, and the position of marks in it.
STRIP, STRIP_Y = 0.1, 0.035
COLORS = {"complete": BLUE, "pruned": VERMILION, "failed": VERMILION, "running": GREY}
DOTTED = (0, (1.5, 1.5))


def draw_history(study: StudyRecord, objective: StudyObjective) -> Drawing | None:
    """Draw the value of each trial in the order of the search; None if no trial has a value."""
    trials = sorted(study.trials, key=lambda trial: trial.number)
    values = [_value(trial, objective) for trial in trials]
    valued = [(trial, objective.shown(value)) for trial, value in zip(trials, values, strict=True) if value is not None]
    without = [trial for trial, value in zip(trials, values, strict=True) if value is None]
    if not valued:
        return None
    figure = new_figure(3.8)
    axes = figure.subplots()
    handles = {}
    best = _best_so_far(study, objective)
    if best:
        numbers = [*(number for number, _ in best), trials[-1].number]
        # Repeat the last level at the last trial, so that the line spans all trials.
        levels = [*(value for _, value in best), best[-1][1]]
        (handles["best so far"],) = axes.plot(
            numbers, levels, color=INK, linewidth=1.2, drawstyle="steps-post", label="best so far", zorder=1
        )
    shown, ys = [trial for trial, _ in valued], [value for _, value in valued]
    handles |= draw_trials(axes, shown, [trial.number for trial in shown], ys, study.best)
    axes.margins(y=0.08)
    # Read the limits after the data are drawn. The strip extends them downwards for trials without a value.
    low, high = axes.get_ylim()
    if without:
        axes.set_ylim(low - STRIP * (high - low), high)
        xs, heights = [trial.number for trial in without], len(without) * [STRIP_Y]
        # These marks have no value, so they are placed at a fraction of the height of the axes.
        handles |= draw_trials(axes, without, xs, heights, None, transform=axes.get_xaxis_transform())
    room = 0.03 * (trials[-1].number - trials[0].number) + 0.5
    axes.set_xlim(trials[0].number - room, trials[-1].number + room)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set(xlabel="trial", ylabel=axis_label(objective))
    label_values(axes.yaxis, objective)
    legend_below(figure, [*handles.values()])
    caption = said(
        "reports.value_each_trial_n",
        n_trials=len(trials),
        count_kinds=count_kinds(trials),
        n_seeds=count(len(study.seeds), "seed"),
        wish=objective.wish,
        words="rise" if objective.maximize else "fall",
        others=_others(trials, valued, without),
    )
    rows = [_row(trial, objective, value) for trial, value in zip(trials, values, strict=True)]
    return Drawing(figure, caption.strip(), rows)


def _value(trial: TrialRecord, objective: StudyObjective) -> float | None:
    """Return the trial's final value; for a pruned trial, the last value that it reported."""
    if trial.state == "complete":
        return objective.of(trial)
    if trial.state == "pruned" and objective.index == 0:
        return next((value for _, value in reversed(trial.intermediate) if value is not None), objective.of(trial))
    return None


def _best_so_far(study: StudyRecord, objective: StudyObjective) -> list[tuple[int, float]]:
    """Return the complete trials that beat all earlier complete ones, with their values as shown."""
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
        words.append(said("reports.pruned_trials_stand_last"))
    if without:
        words.append(said("reports.bottom_trials_without_value", count_kinds=count_kinds(without)))
    return " ".join(words)


def _row(trial: TrialRecord, objective: StudyObjective, value: float | None) -> DataRow:
    row: DataRow = {"trial": trial.number, "kind": kind_of(trial), "metric": objective.metric}
    return row if value is None else row | {"value": value}


def draw_intermediate(study: StudyRecord, objective: StudyObjective) -> Drawing | None:
    """Draw what trials reported while training, on which pruning decides; None if nothing was reported."""
    # A repeated setting shares the cells, and so the curve, of an earlier trial.
    curves = {trial.number: curve for trial in study.trials if trial.same_as is None and (curve := _curve_of(trial))}
    if not curves:
        return None
    trials = [trial for trial in study.trials if trial.number in curves]
    figure = new_figure(3.8)
    axes = figure.subplots()
    handles = {}
    # False sorts first, so the default and then the best are drawn last, on top of the others.
    for trial in sorted(trials, key=lambda trial: (trial.number == study.best, trial.is_default, trial.number)):
        steps, values = zip(*curves[trial.number], strict=True)
        ys = [objective.shown(value) for value in values]
        is_best = trial.number == study.best
        kind, color = kind_of(trial), INK if is_best else COLORS[trial.state]
        (line,) = axes.plot(steps, ys, color=color, zorder=3 if is_best else 2, label=kind)
        if is_best:
            line.set(linewidth=2.4, label=best_label(trial.number))
        elif kind == "default":
            line.set(linewidth=1.6, linestyle=(0, (5, 2)), color=MARKS["default"].color)
        else:
            line.set(linewidth=0.9, alpha=0.75, linestyle=DOTTED if trial.state == "running" else "-")
        # A line with a single point is invisible without a marker.
        if len(steps) == 1 and trial.state == "complete":
            line.set(marker="o", markersize=3)
        if trial.state in ("pruned", "failed"):
            MARKS[trial.state].plot(axes, steps[-1:], ys[-1:], zorder=4)
            line.set(marker=MARKS[trial.state].marker, markersize=5, markevery=[len(steps) - 1])
        handles[str(line.get_label())] = line
    axes.margins(x=0.03)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)
    by_seed = study.pruner["type"] == "wilcoxon"
    reported = "of each seed" if by_seed else "while training"
    axes.set(xlabel="training seed" if by_seed else "step", ylabel=f"{objective.name} {reported}{objective.unit}")
    label_values(axes.yaxis, objective)
    legend_below(figure, [*handles.values()])
    silent = len(study.trials) - len(trials)
    what = said("reports.score_each_seed_trial") if by_seed else said("reports.what_trials_reported_while")
    caption = said(
        "reports.n_pruned_trial_ends",
        what=what,
        n_trials=len(trials),
        count_kinds=count_kinds(trials),
        wish=objective.wish,
        value=said("reports.trials_reported_nothing_their", n_trials=len(study.trials), silent=silent)
        if silent
        else "",
    )
    rows: list[DataRow] = [
        {"trial": trial.number, "kind": kind_of(trial), "step": step, "value": value}
        for trial in trials
        for step, value in curves[trial.number]
    ]
    return Drawing(figure, caption, rows)


def _curve_of(trial: TrialRecord) -> list[tuple[int, float]]:
    return [(step, value) for step, value in trial.intermediate if value is not None]


HISTORY = SearchFigure(name="history", title="History of the search", draw=draw_history, each_objective=True, order=20)
INTERMEDIATE = SearchFigure(name="intermediate", title="Learning curves of trials", draw=draw_intermediate, order=60)
