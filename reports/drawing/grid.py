"""A grid of panels: a row for each arm, a column for each quantity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.words import said
from reports.drawing.curves import (
    arm_label,
    count_from_zero,
    describe_curves,
    draw_mean,
    draw_seeds_and_band,
    extremes,
    only_value,
)
from reports.drawing.marks import mark, name_axes
from reports.drawing.panels import Panels, hide_labels, legend_at_bottom, share_limits, write_above
from reports.drawing.rendering import DataRow, Drawing, Rows
from reports.drawing.style import GREY, ArmStyle, arm_styles, is_narrow, new_figure, say_not_recorded, short_name
from reports.formats import number, percent
from reports.measure import Analysis
from reports.measure.curves import Curve, Line, step_curves, training_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# The distance from the top of a panel to its column's heading. The title with the arm's name is in between.
HEADING_OFFSET_POINTS = 21
# The resolution of long lines (see `extremes`) in a panel that is a third of a figure wide.
STRETCHES = 30


@dataclass(frozen=True)
class Trace:
    """A field and the name of its line. The name is "" if the column has a single line."""

    field: str
    label: str = ""


@dataclass(frozen=True)
class Column:
    """One quantity of a grid."""

    heading: str
    solid: Trace
    dotted: Trace | None = None
    """A second line in the same panels."""
    reference: float | None = None
    """The y of a grey reference line."""
    own_scale: bool = False
    """True if each arm has its own y axis, because its numbers are not comparable with other arms'."""
    as_percent: bool = False
    """True if y is a fraction, to be shown in percent."""
    limits: tuple[float, float] | None = None
    """The ends of the y axis."""
    never: str = ""
    """The sentence for a quantity that is 0 in every arm all along."""

    @property
    def traces(self) -> list[Trace]:
        return [self.solid] if self.dotted is None else [self.solid, self.dotted]

    @property
    def full_heading(self) -> str:
        if self.dotted is None:
            return self.heading
        return f"{self.heading}\nsolid: {self.solid.label}\ndotted: {self.dotted.label}"


ByField = Mapping[str, Mapping[str, Curve]]
"""Maps each field to the curves of the arms that recorded it."""


def draw_step_grid(analysis: Analysis, columns: Sequence[Column], what: str) -> Drawing | None:
    """Draw fields of steps.jsonl over training; None if no cell recorded any of them.

    what: the beginning of the caption.
    """
    axis = training_axis(analysis)
    by_field = {
        trace.field: {curve.arm: curve for curve in step_curves(analysis, trace.field)}
        for column in columns
        for trace in column.traces
    }

    said = {column.heading: sentence for column in columns if (sentence := _in_words(column, by_field))}
    shown = [column for column in columns if column.heading not in said]
    figure = draw_grid(analysis, shown, by_field, axis.label, along_training)
    if figure is None and not said:
        return None
    counts = [] if figure is None else [describe_grid(analysis, by_field)]
    caption, rows = " ".join([what, *said.values(), *counts]), grid_rows(by_field, axis.field)
    return Drawing(figure or new_figure(1.0), caption, rows, in_words=figure is None)


def along_training(axes: Axes) -> None:
    """Set up the x axis of a panel to count tokens or steps."""
    axes.locator_params(axis="x", nbins=4)
    count_from_zero(axes)


def _in_words(column: Column, by_field: ByField) -> str:
    """Return a sentence for a quantity that has one value in all arms throughout; "" for any other quantity.

    It says as much as panels of flat lines would.
    """
    values = {trace.label: only_value([*by_field[trace.field].values()]) for trace in column.traces}
    # A field that no cell recorded has no value either, so a missing quantity never becomes a sentence.
    known = {label: value for label, value in values.items() if value is not None}
    if len(known) < len(values):
        return ""
    if column.never and not any(known.values()):
        return column.never
    write = percent if column.as_percent else number
    parts = [f"{write(value)}{f' ({label})' if label else ''}" for label, value in known.items()]
    return said("reports.every_arm_all_along_in_words", heading=column.heading, parts=" and ".join(parts))


def draw_grid(
    analysis: Analysis, columns: Sequence[Column], by_field: ByField, xlabel: str, set_up: Callable[[Axes], None]
) -> Figure | None:
    """Draw a row for each arm that has a curve, and a column for each quantity that an arm has; None if there is none.

    All arms' panels except the baseline's also show the baseline's mean. set_up: prepares the x axis of a panel.
    """
    sweep = analysis.sweep
    columns = [column for column in columns if any(by_field[trace.field] for trace in column.traces)]
    arms = [arm for arm in sweep.arms if any(arm in curves for curves in by_field.values())]
    if not columns:
        return None
    styles = arm_styles(sweep.arms, sweep.baseline)
    lines = max(column.full_heading.count("\n") for column in columns) + 1
    legend = f"mean of {short_name(sweep.baseline)}" + (" (its solid line)" if lines > 1 and not is_narrow() else "")
    compared = len(arms) > 1 and any(sweep.baseline in by_field[column.solid.field] for column in columns)
    figure, panels = _panels(len(arms), len(columns), 0.45 + 0.13 * lines, [legend] if compared else [])
    handles: list[Line2D] = []
    for arm, row in zip(arms, panels, strict=True):
        for column, axes in zip(columns, row, strict=True):
            if not column.own_scale and arm != sweep.baseline:
                handles = _draw_baseline(axes, by_field[column.solid.field].get(sweep.baseline), legend) or handles
            _draw_panel(axes, column, by_field, arm, replace(styles[arm], dash="-"))
            name_axes(axes, xlabel, column.heading)
            set_up(axes)
        counts = [curves[arm].n for curves in by_field.values() if arm in curves]
        for axes in row if is_narrow() else row[:1]:
            mark(axes.set_title(arm_label(arm, max(counts)), loc="left"), arm, "name")
    # Set limits before labels, because `hide_labels` replaces the ticks by lines at fixed positions.
    share_limits([axes for row in panels for axes in row], "x")
    for column, of_column in zip(columns, zip(*panels, strict=True), strict=True):
        if not column.own_scale:
            share_limits(of_column, "y")
        if column.as_percent:
            for axes in of_column:  # A band may reach below 0, but a share cannot.
                axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    hide_labels((axes for row in panels[:-1] for axes in row), "x")
    for column, axes in zip(columns, panels[0], strict=True):
        write_above(axes, column.full_heading, HEADING_OFFSET_POINTS)
    for axes in panels[-1]:
        axes.set_xlabel(xlabel)
    if handles:
        legend_at_bottom(figure, handles)
    return figure


def _panels(arms: int, quantities: int, room_in: float, legend: Sequence[str]) -> tuple[Figure, list[list[Axes]]]:
    """Create the empty panels [arms][quantities], stacked on a narrow page."""
    if is_narrow():
        return stacked_panels(arms, quantities, room_in, legend)
    layout = Panels(arms, quantities, height=1.05, column_gap=0.52, row_gap=0.3, left=0.55, top=room_in)
    return layout.draw(legend)


def stacked_panels(
    arms: int, quantities: int, room_in: float, legend: Sequence[str]
) -> tuple[Figure, list[list[Axes]]]:
    """Create panels [arms][quantities] for a phone, with the columns stacked on top of each other.

    room_in: the space above each column for its heading, in inches.
    """
    above = {arms * i: room_in for i in range(1, quantities)}
    layout = Panels(arms * quantities, 1, 0.9, column_gap=0.0, row_gap=0.34, left=0.55, top=room_in, above=above)
    figure, stacked = layout.draw(legend)
    return figure, [[stacked[arms * i + arm][0] for i in range(quantities)] for arm in range(arms)]


def describe_grid(analysis: Analysis, by_field: ByField) -> str:
    """Return the part of a caption that describes the seeds and bands."""
    curves = [curve for by_arm in by_field.values() for curve in by_arm.values()]
    return describe_curves(curves, analysis.sweep.alpha)


def grid_rows(by_field: ByField, x_name: str) -> Rows:
    """Return a row for each arm, seed and x, with a column for each field."""
    return Rows(lambda: _grid_rows(by_field, x_name))


def _grid_rows(by_field: ByField, x_name: str) -> Iterator[DataRow]:
    lines: dict[tuple[str, int], dict[str, Line]] = {}
    for field, by_arm in by_field.items():
        for arm, curve in by_arm.items():
            for line in curve.lines:
                lines.setdefault((arm, line.seed), {})[field] = line
    for (arm, seed), of_cell in lines.items():
        # Fields may be recorded at different steps, so a row lacks fields without a value at its x.
        rows: dict[float, DataRow] = {}
        for field, line in of_cell.items():
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
                rows.setdefault(x, {"arm": arm, "seed": seed, x_name: x})[field] = y
        yield from (rows[x] for x in sorted(rows))


def _draw_panel(axes: Axes, column: Column, by_field: ByField, arm: str, style: ArmStyle) -> None:
    from matplotlib.ticker import PercentFormatter

    for trace, look in zip(column.traces, (style, replace(style, marker="x", dash=":")), strict=False):
        curve = by_field[trace.field].get(arm)
        if curve is not None:
            draw_seeds_and_band(axes, curve, look, STRETCHES)
            draw_mean(axes, curve, look, "", STRETCHES)
    if not any(arm in by_field[trace.field] for trace in column.traces):
        say_not_recorded(axes)
    if column.reference is not None:
        axes.axhline(column.reference, color=GREY, linewidth=0.9, zorder=0)
    if column.as_percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if column.limits is not None:
        axes.set_ylim(column.limits)
    else:
        axes.locator_params(axis="y", nbins=3)


def _draw_baseline(axes: Axes, curve: Curve | None, label: str) -> list[Line2D]:
    """Draw the mean of the baseline as a thin grey line, and return its handle."""
    if curve is None:
        return []
    kept = extremes(curve.mean, STRETCHES)
    return axes.plot(curve.grid[kept], curve.mean[kept], color=GREY, linewidth=0.9, label=label)
