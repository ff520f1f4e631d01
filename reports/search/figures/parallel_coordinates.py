"""Every complete trial as a line through its knobs, which ends at its value on a colour bar.

Knobs are stacked vertically, so that long names fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.records.study import StudyRecord, TrialRecord
from harness.words import said
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, INK, is_narrow, new_figure, width_in
from reports.search.drawing import TICK_CHARACTER_IN, TICK_POINTS, KnobAxis, best_label, kind_of, shortened, two_lines
from reports.search.figures import SearchFigure
from reports.search.values import StudyObjective, complete_trials, short_knobs, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MIN_TRIALS = 2
CHOICE_AT = 0.06
"""The position of a choice within its section of the axis. Its name is to the right, where no line crosses it."""
# The middle of cividis, which is visible on white and on dark pages. Each end of it would vanish on one of them.
DARK, LIGHT = 0.25, 0.88
BAR_STEPS = 64
BAR_TICKS = 5


@dataclass(frozen=True)
class CoordinatesLayout:
    """Positions on the sheet, in inches from its left or top edge."""

    names: float = 0.12
    low: float = 2.25
    high: float = 5.0
    not_drawn: float = 5.75
    top: float = 0.15
    pitch: float = 0.47
    band: float = 0.2
    below: float = 0.25
    name_lift: float = 0.0
    """How far a knob's name is above its band; 0 if it is next to the band."""
    name_characters: int = 23

    def x(self, position: float) -> float:
        return self.low + position * (self.high - self.low)

    def y(self, row: int) -> float:
        return self.top + self.pitch * row


NARROW_SHEET = CoordinatesLayout(
    low=0.5, high=2.55, not_drawn=3.0, top=0.35, pitch=0.62, name_lift=0.2, name_characters=40
)


@dataclass(frozen=True)
class Scale:
    """The values of an objective in ascending order, as shown; better values are darker.

    Colours depend on rank: by value, one collapsed trial would make all others look alike.
    """

    values: tuple[float, ...]
    maximize: bool

    @property
    def low(self) -> float:
        return self.values[0]

    @property
    def high(self) -> float:
        return self.values[-1]

    def position(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def color(self, value: float) -> Any:
        import matplotlib as mpl

        rank = np.interp(value, self.values, np.linspace(0, 1, len(self.values)))
        goodness = rank if self.maximize else 1 - rank
        return mpl.colormaps["cividis"](LIGHT - (LIGHT - DARK) * float(goodness))


def draw_parallel_coordinates(study: StudyRecord, objective: StudyObjective) -> Drawing | None:
    """Draw every complete trial as a line through its knobs; None for fewer than two complete trials."""
    trials = complete_trials(study)
    knobs = [name for name in study.knobs if any(name in trial.params for trial in trials)]
    if len(trials) < MIN_TRIALS or not knobs:
        return None
    shown = {trial.number: objective.shown(value) for trial in trials if (value := objective.of(trial)) is not None}
    scale = Scale(tuple(sorted(set(shown.values()))), objective.maximize)
    sheet = NARROW_SHEET if is_narrow() else CoordinatesLayout()
    knob_axes = {
        name: KnobAxis.of(
            study.knobs[name], [trial.params[name] for trial in trials if name in trial.params], CHOICE_AT
        )
        for name in knobs
    }
    figure, axes = _blank(sheet.y(len(knobs) + 1) + sheet.below)
    short = short_knobs(study.knobs)
    conditional = [name for name in knobs if any(name not in trial.params for trial in trials)]
    for row, name in enumerate(knobs):
        _draw_knob(axes, sheet, sheet.y(row), short[name], knob_axes[name], conditional=name in conditional)
    _draw_bar(axes, sheet, sheet.y(len(knobs)), scale, objective)
    # Draw the best trial last, so that no other line covers it.
    order = sorted(trials, key=lambda trial: scale.position(shown[trial.number]), reverse=not objective.maximize)
    for trial in order:
        xs, ys = _path(trial, knobs, knob_axes, sheet, sheet.x(scale.position(shown[trial.number])))
        axes.plot(xs, ys, color=scale.color(shown[trial.number]), linewidth=1.0, zorder=2)
        if trial.number == study.best:
            label = best_label(trial.number) + (", the default" if trial.is_default else "")
            axes.plot(xs, ys, color=INK, linewidth=2.6, zorder=4, label=label)
        elif trial.is_default:
            axes.plot(xs, ys, color=INK, linewidth=1.3, linestyle=(0, (2, 1.5)), zorder=3, label="default")
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(handles=handles, loc="lower center", ncols=2, handlelength=4.0, borderaxespad=0.3)
    caption = said(
        "reports.line_for_each_n",
        n_trials=len(trials),
        words=objective.words,
        wish=objective.wish,
        not_drawn=_not_drawn(study, conditional),
    )
    return Drawing(figure, caption, [_row(trial, objective, knobs) for trial in trials])


def _blank(height_in: float) -> tuple[Figure, Axes]:
    """Make a figure with a single plot, whose coordinates are inches from the upper left corner."""
    figure = new_figure(height_in, laid_out=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    # The y axis is reversed, so that coordinates grow downwards.
    axes.set(xlim=(0, width_in()), ylim=(height_in, 0))
    return figure, axes


def _draw_knob(axes: Axes, sheet: CoordinatesLayout, y: float, name: str, axis: KnobAxis, *, conditional: bool) -> None:
    from matplotlib.patches import Rectangle

    middle = y + sheet.band / 2
    name = two_lines(name, sheet.name_characters)
    axes.text(sheet.names, middle - sheet.name_lift, name, va="center", fontsize=8, linespacing=1.05)
    axes.add_patch(
        Rectangle((sheet.low, y), sheet.high - sheet.low, sheet.band, facecolor=GREY, alpha=0.16, linewidth=0)
    )
    if conditional:
        axes.add_patch(
            Rectangle((sheet.not_drawn - 0.12, y), 0.24, sheet.band, facecolor=GREY, alpha=0.16, linewidth=0)
        )
        axes.text(sheet.not_drawn + 0.17, middle, "not\ndrawn", va="center", fontsize=TICK_POINTS, linespacing=1.0)
    ticks = axis.ticks(2)
    if axis.choices:
        fitting = max(3, int(((sheet.high - sheet.low) * (1 - CHOICE_AT) / len(ticks) - 0.1) / TICK_CHARACTER_IN))
        for place, text in ticks:
            axes.text(
                sheet.x(place) + 0.06, middle, shortened(text, fitting), va="center", fontsize=TICK_POINTS, zorder=5
            )
        return
    for place, text in ticks:
        left = place < 0.5
        x = sheet.x(0) - 0.06 if left else sheet.x(1) + 0.06
        axes.text(x, middle, text, ha="right" if left else "left", va="center", fontsize=TICK_POINTS)


def _draw_bar(axes: Axes, sheet: CoordinatesLayout, y: float, scale: Scale, objective: StudyObjective) -> None:
    from matplotlib.patches import Rectangle

    label = two_lines(objective.label, sheet.name_characters)
    axes.text(sheet.names, y + sheet.band / 2 - sheet.name_lift, label, va="center", fontsize=8)
    width = (sheet.high - sheet.low) / BAR_STEPS
    for step in range(BAR_STEPS):
        color = scale.color(scale.low + (step + 0.5) / BAR_STEPS * (scale.high - scale.low))
        # Draw the edge in the same colour, because renderers leave hairlines between neighbours.
        axes.add_patch(Rectangle((sheet.low + step * width, y), width, sheet.band, color=color, linewidth=0.4))
    for tick in range(BAR_TICKS) if scale.high > scale.low else [BAR_TICKS // 2]:
        place = tick / (BAR_TICKS - 1)
        value = scale.low + place * (scale.high - scale.low)
        text = objective.text(value / 100 if objective.is_fraction else value)
        axes.text(sheet.x(place), y + sheet.band + 0.05, text, ha="center", va="top", fontsize=TICK_POINTS)


def _path(
    trial: TrialRecord, knobs: Sequence[str], knob_axes: dict[str, KnobAxis], sheet: CoordinatesLayout, end: float
) -> tuple[list[float], list[float]]:
    """Return the line of a trial: straight down through each knob's band, then across to the next."""
    xs, ys = [], []
    for row, name in enumerate(knobs):
        x = sheet.x(knob_axes[name].position(trial.params[name])) if name in trial.params else sheet.not_drawn
        xs += [x, x]
        ys += [sheet.y(row), sheet.y(row) + sheet.band]
    return [*xs, end], [*ys, sheet.y(len(knobs))]


def _row(trial: TrialRecord, objective: StudyObjective, knobs: Sequence[str]) -> DataRow:
    row: DataRow = {"trial": trial.number, "kind": kind_of(trial), "metric": objective.metric}
    if (value := objective.of(trial)) is not None:
        row["value"] = value
    return row | {name: value_text(trial.params[name]) for name in knobs if name in trial.params}


def _not_drawn(study: StudyRecord, conditional: Sequence[str]) -> str:
    logs = any(knob.kind == "log" for knob in study.knobs.values())
    words = said("reports.knobs_drawn_on_log") if logs else ""
    if conditional:
        words += said("reports.not_drawn_trials_other")
    states = {trial.state for trial in study.trials} - {"complete"}
    if states:
        words += said("reports.trials_left_out", states=" or ".join(sorted(states)))
    return words


PARALLEL_COORDINATES = SearchFigure(
    name="parallel_coordinates", title="Settings of all trials", draw=draw_parallel_coordinates, order=40
)
