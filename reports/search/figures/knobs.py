"""The effect of each knob: its share of the variance of an objective, and the objective against it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.records.study import StudyRecord, TrialRecord
from harness.words import said
from reports.drawing.panels import Panels, hide_labels, legend_at_bottom, share_limits
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import ARM_COLORS, new_figure
from reports.search.drawing import (
    TICK_CHARACTER_IN,
    TICK_POINTS,
    KnobAxis,
    best_label,
    count_kinds,
    draw_trials,
    kind_of,
    label_values,
    shortened,
    two_lines,
)
from reports.search.figures import SearchFigure
from reports.search.values import StudyObjective, complete_trials, short_knobs, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

BAR_IN, MARGINS_IN = 0.26, 0.75
MAX_CHARACTERS = 40
MIN_TRIALS = 2
PANELS = partial(Panels, height=1.15, column_gap=0.25, row_gap=0.66, left=0.75, top=0.42, bottom=0.4)
# (number of columns, width of a panel in inches, characters per line of its title)
NARROW, WIDE = (3, 1.65, 24), (2, 2.6, 38)
EDGE = 0.06
"""The margin at both ends of a panel, as a share of the knob's range."""


def draw_importance(study: StudyRecord, objective: StudyObjective) -> Drawing | None:
    """Draw each knob's fANOVA share of an objective's variance; None if it was refused, which the page explains."""
    found = next((one for one in study.importances if one.metric == objective.metric), None)
    if found is None or not found.shares:
        return None
    labels = short_knobs(study.knobs)
    # Ascending, because barh draws upwards and the largest share should be on top. Names break ties reproducibly.
    shares = sorted(found.shares.items(), key=lambda item: (item[1], item[0]))
    figure = new_figure(MARGINS_IN + BAR_IN * max(2, len(shares)))
    axes = figure.subplots()
    names = [shortened(labels.get(name, name), MAX_CHARACTERS) for name, _ in shares]
    axes.barh(range(len(shares)), [100 * share for _, share in shares], height=0.62, color=ARM_COLORS[0])
    for place, (_, share) in enumerate(shares):
        axes.annotate(
            f"{100 * share:.1f}%", (100 * share, place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(shares)), names)
    axes.grid(visible=False, axis="y")
    # Leave room for the label of the longest bar. The limit is 1 if all shares are 0.
    axes.set_xlim(0, 1.15 * max(100 * share for _, share in shares) or 1.0)
    axes.set_ylim(-0.6, len(shares) - 0.4)
    axes.set_xlabel(said("reports.share_variance", name=objective.name))
    caption = said("reports.share_variance_over_searched", words=objective.words, n_trials=found.n_trials)
    rows: list[DataRow] = [
        {"knob": name, "metric": objective.metric, "share": share, "n_trials": found.n_trials}
        for name, share in reversed(shares)
    ]
    return Drawing(figure, caption, rows)


def draw_slices(study: StudyRecord, objective: StudyObjective) -> Drawing | None:
    """Draw the objective against each knob separately; None for fewer than two complete trials."""
    trials = complete_trials(study)
    knobs = [name for name in study.knobs if any(name in trial.params for trial in trials)]
    if len(trials) < MIN_TRIALS or not knobs:
        return None
    axes_of = {
        name: KnobAxis.of(study.knobs[name], [trial.params[name] for trial in trials if name in trial.params])
        for name in knobs
    }
    # If any tick label would not fit, use wider and therefore fewer panels.
    columns, width, characters = NARROW if all(_fits(axis, NARROW[1]) for axis in axes_of.values()) else WIDE
    columns = min(columns, len(knobs))
    kinds = {kind_of(trial) for trial in trials}
    labels = [*kinds, *([] if study.best is None else [best_label(study.best)])]
    figure, panels = PANELS(-(-len(knobs) // columns), columns).draw_some(len(knobs), labels)
    short = short_knobs(study.knobs)
    handles: dict[str, Line2D] = {}
    for name, panel in zip(knobs, panels, strict=True):
        drawn = [trial for trial in trials if name in trial.params]
        handles |= _draw_panel(panel, drawn, study.best, objective, name, axes_of[name], width)
        count = "" if len(drawn) == len(trials) else f" (n = {len(drawn)})"
        panel.set_title(two_lines(short[name] + count, characters), loc="left")
    share_limits(panels, "y")
    hide_labels((panel for i, panel in enumerate(panels) if i % columns), "y")
    figure.text(0.02, 0.5, f"{objective.name}{objective.unit}", rotation=90, ha="center", va="center", fontsize=9)
    legend_at_bottom(figure, [*handles.values()])
    some = any(name not in trial.params for trial in trials for name in knobs)
    caption = said(
        "reports.values_against_those_each",
        words=objective.words,
        n_trials=len(trials),
        count_kinds=count_kinds(trials),
        wish=objective.wish,
        words_2=said("reports.panel_fewer_trials_says") if some else "",
    )
    rows: list[DataRow] = [
        {"knob": name, "trial": trial.number, "kind": kind_of(trial), "knob_value": value_text(trial.params[name]),
         "metric": objective.metric, "value": value}
        for name in knobs
        for trial in trials
        if name in trial.params and (value := objective.of(trial)) is not None
    ]  # fmt: skip
    return Drawing(figure, caption, rows)


def _draw_panel(
    panel: Axes,
    trials: Sequence[TrialRecord],
    best: int | None,
    objective: StudyObjective,
    name: str,
    axis: KnobAxis,
    width_in: float,
) -> dict[str, Line2D]:
    xs = [axis.position(trial.params[name]) for trial in trials]
    ys = [objective.shown(value) for trial in trials if (value := objective.of(trial)) is not None]
    handles = draw_trials(panel, trials, xs, ys, best)
    panel.margins(y=0.16)  # for the ring around the best
    panel.set_xlim(-EDGE, 1 + EDGE)
    ticks = axis.ticks(3)
    fitting = _fitting_characters(len(ticks), width_in)
    panel.set_xticks([place for place, _ in ticks], [shortened(text, fitting) for _, text in ticks])
    panel.tick_params(axis="x", labelsize=TICK_POINTS)
    panel.locator_params(axis="y", nbins=5)
    label_values(panel.yaxis, objective)
    return handles


def _fits(axis: KnobAxis, width_in: float) -> bool:
    ticks = axis.ticks(3)
    return all(len(text) <= _fitting_characters(len(ticks), width_in) for _, text in ticks)


def _fitting_characters(ticks: int, width_in: float) -> int:
    """Return how many characters a tick label may have, leaving a gap of one character; at least 3."""
    return max(3, int(width_in / (1 + 2 * EDGE) / ticks / TICK_CHARACTER_IN) - 1)


IMPORTANCE = SearchFigure(
    name="importance", title="Importance of knobs", draw=draw_importance, each_objective=True, order=30
)
SLICES = SearchFigure(name="slices", title="Each knob by itself", draw=draw_slices, each_objective=True, order=50)
