"""Curves: thin lines for seeds, a thick mean, a t band. A few arms are overlaid; many get a panel each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.words import said
from reports.drawing.marks import mark, mark_legend, name_axes
from reports.drawing.panels import Panels, legend_at_bottom, share_axes
from reports.drawing.rendering import Drawing, Rows
from reports.drawing.style import (
    BASE_MODEL,
    GREY,
    MAX_NAME_CHARACTERS,
    SEED_ALPHA,
    ArmStyle,
    arm_styles,
    is_narrow,
    legend_columns,
    new_figure,
    short_name,
)
from reports.formats import number, percent, tokens
from reports.measure import Analysis
from reports.measure.curves import Curve, Line, step_curves, training_axis
from reports.statistics import MIN_PAIRS, FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MAX_OVERLAID_ARMS = 4
LOG_SCALE_RATIO = 8
"""An axis of budgets is logarithmic if the largest is at least this many times the smallest."""
PANEL_CHARACTERS = 38
OVERVIEW_IN, OVERVIEW_GAP_IN = 2.6, 0.75
"""The height of the overview panel, and the gap between it and the panels of the arms."""
# Markers distinguish arms without colour. More than this many on a curve would hide it.
MARKERS_PER_CURVE = 10
# Two points for each stretch are about one point for every few pixels in half the width of a figure. The line's width
# covers the gaps.
DRAWN_STRETCHES = 60


def draw_step_field(analysis: Analysis, field: str, ylabel: str, what: str) -> Drawing | None:
    """Draw a field of steps.jsonl over training; None if no cell recorded it. what: the beginning of the caption."""
    curves = step_curves(analysis, field)
    return draw_training(analysis, curves, field, ylabel, what) if curves else None


def draw_training(analysis: Analysis, curves: Sequence[Curve], name: str, ylabel: str, what: str) -> Drawing:
    """Draw curves over training.

    name: the column of y in the data.
    what: the beginning of the caption.
    """
    axis = training_axis(analysis)
    rows = curve_rows(curves, axis.field, name)
    # If every point has the same value, a sentence says as much as a figure.
    if (value := only_value(curves)) is not None:
        caption = said("reports.every_arm_all_along", what=what, value=number(value))
        return Drawing(new_figure(1.0), caption, rows, in_words=True)
    figure = draw_curves(analysis, curves, xlabel=axis.label, ylabel=ylabel)
    return Drawing(figure, f"{what} {describe_curves(curves, analysis.sweep.alpha)}", rows)


def only_value(curves: Sequence[Curve]) -> float | None:
    """Return the value of all points of all seeds; None if there are several values.

    A sentence can say this value as well as a figure.
    """
    values = {value for curve in curves for line in curve.lines for value in (line.y.min(), line.y.max())}
    return float(values.pop()) if len(values) == 1 else None


def draw_curves(
    analysis: Analysis,
    curves: Sequence[Curve],
    *,
    xlabel: str,
    ylabel: str,
    base_model: Line | None = None,
    set_up: Callable[[Axes], None] | None = None,
) -> Figure:
    """Draw up to four arms overlaid. More arms have a panel each, below an overview of all means.

    In the panels, the baseline's mean is shown for comparison.
    base_model: the line of the model before training, if known.
    set_up: prepares the axes of each panel; by default x counts tokens or steps from 0.
    """
    set_up = set_up or count_from_zero
    if len(curves) > MAX_OVERLAID_ARMS:
        return _panels(analysis, curves, xlabel, ylabel, base_model, set_up)
    styles = arm_styles(analysis.sweep.arms, analysis.sweep.baseline)
    figure = new_figure(4.0)
    axes = figure.subplots()
    for curve in curves:
        draw_seeds_and_band(axes, curve, styles[curve.arm])
    # Draw means last, so that no other arm's band or seeds cover them.
    handles = [draw_mean(axes, curve, styles[curve.arm], arm_label(curve.arm, curve.n)) for curve in curves]
    handles += _draw_base_model(axes, base_model)
    set_up(axes)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend_below(figure, handles)
    return figure


def curve_rows(curves: Sequence[Curve], x_name: str, y_name: str) -> Rows:
    """Return the points of each seed, as recorded, one per row."""
    return Rows(
        lambda: (
            {"arm": curve.arm, "seed": line.seed, x_name: x, y_name: y}
            for curve in curves
            for line in curve.lines
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
        )
    )


def describe_curves(curves: Sequence[Curve], alpha: float) -> str:
    """Return the part of a caption that describes the seeds and bands of curves."""
    return describe_seeds([curve.n for curve in curves], alpha)


def describe_seeds(counts: Collection[int], alpha: float, spread: str = "band") -> str:
    """Return the part of a caption that states the number of seeds per arm and the level of the intervals.

    How the intervals are computed is the same for all figures, so a page explains it once.
    spread: the figure's name for an interval, `band` or `bar`.
    """
    if max(counts) == 1:
        return said("reports.one_seed_per_arm", spread=spread)
    if max(counts) < MIN_PAIRS:
        return said(
            "reports.seeds_no_below_seeds", seeds_per_arm=seeds_per_arm(counts), spread=spread, min_pairs=MIN_PAIRS
        )
    fewer = f"; no {spread} below {MIN_PAIRS} seeds" if min(counts) < MIN_PAIRS else ""
    return f"Seeds: {seeds_per_arm(counts)}; {spread}s: {percent(1 - alpha)}{fewer}."


def seeds_per_arm(counts: Collection[int]) -> str:
    """Return `n = 3 per arm`, or the range of the counts."""
    low, high = min(counts), max(counts)
    return f"n = {low} per arm" if low == high else said("reports.n_per_arm", low=low, high=high)


def _panels(
    analysis: Analysis,
    curves: Sequence[Curve],
    xlabel: str,
    ylabel: str,
    base_model: Line | None,
    set_up: Callable[[Axes], None],
) -> Figure:
    """Draw a panel for each arm, below an overview with the mean of every arm."""
    baseline = analysis.sweep.baseline
    styles = arm_styles(analysis.sweep.arms, baseline)
    columns = panel_columns()
    rows = -(-len(curves) // columns)
    reference = next((curve for curve in curves if curve.arm == baseline), None)
    legend = [] if reference is None else [f"mean of {short_name(baseline)}"]
    legend += [] if base_model is None else [BASE_MODEL]
    overview_in = OVERVIEW_IN + OVERVIEW_GAP_IN
    layout = Panels(rows, columns, height=1.2, column_gap=0.25, row_gap=0.42, left=0.75, top=0.42 + overview_in)
    figure, panels = layout.draw_some(len(curves), legend)
    overview = layout.across_the_top(figure, 0.42, OVERVIEW_IN)
    overview.set_title("means of all arms", loc="left")
    for curve in curves:
        draw_mean(overview, curve, styles[curve.arm], "")
    _draw_base_model(overview, base_model)
    name_axes(overview, xlabel, ylabel)
    set_up(overview)
    handles: list[Line2D] = []
    for curve, axes in zip(curves, panels, strict=True):
        draw_seeds_and_band(axes, curve, styles[curve.arm])
        handles = []
        if reference is not None:
            handles += axes.plot(
                reference.grid, reference.mean, color=styles[baseline].color, linewidth=0.9, label=legend[0]
            )
        handles += _draw_base_model(axes, base_model)
        # In the baseline's own panel, the thin line already shows its mean.
        if curve is not reference:
            draw_mean(axes, curve, styles[curve.arm], "")
        mark(axes.set_title(arm_label(curve.arm, curve.n, PANEL_CHARACTERS), loc="left"), curve.arm, "name")
        name_axes(axes, xlabel, ylabel)
        set_up(axes)
    share_axes(panels, columns)
    for axes in panels[-columns:]:
        axes.set_xlabel(xlabel)
    figure.text(0.02, 0.5, ylabel, rotation=90, ha="center", va="center", fontsize=9)
    if handles:
        legend_at_bottom(figure, handles)
    return figure


def panel_columns() -> int:
    """Return how many panels are placed side by side."""
    return 1 if is_narrow() else 2


def arm_label(arm: str, seeds: int, characters: int = 2 * MAX_NAME_CHARACTERS) -> str:
    """Return an arm's name and number of seeds, on two lines if one would exceed `characters`."""
    name, n = short_name(arm), f"(n = {seeds})"
    return f"{name} {n}" if len(f"{name} {n}") <= characters else f"{name}\n{n}"


def draw_seeds_and_band(axes: Axes, curve: Curve, style: ArmStyle, stretches: int = DRAWN_STRETCHES) -> None:
    """Draw a thin line for each seed, and the band if the curve has one.

    A single seed is its own mean, so nothing is drawn then. stretches: the resolution of long lines, see `extremes`.
    """
    if curve.n == 1:
        return
    if np.isfinite(curve.low).any():
        # Thin out the band at the same points as the mean, so that both have the same corners.
        kept = extremes(curve.mean, stretches)
        x, low, high = curve.grid[kept], curve.low[kept], curve.high[kept]
        mark(axes.fill_between(x, low, high, color=style.color, alpha=0.14, linewidth=0), curve.arm, "interval")
    # One line with gaps is several times as fast to draw as a collection of lines.
    gap = np.full((1, 2), np.nan)
    seeds = [np.column_stack([line.x, line.y])[extremes(line.y, stretches)] for line in curve.lines]
    x, y = np.concatenate([part for seed in seeds for part in (seed, gap)]).T
    (drawn,) = axes.plot(x, y, color=style.color, linewidth=0.6, alpha=SEED_ALPHA)
    mark(drawn, curve.arm, "seed", [line.seed for line in curve.lines])


def draw_mean(axes: Axes, curve: Curve, style: ArmStyle, label: str, stretches: int = DRAWN_STRETCHES) -> Line2D:
    """Draw the thick mean line, with the arm's marker and dash.

    stretches: the resolution of long lines, see `extremes`.
    """
    kept = extremes(curve.mean, stretches)
    (line,) = axes.plot(
        curve.grid[kept],
        curve.mean[kept],
        color=style.color,
        linestyle=style.dash,
        linewidth=1.8,
        marker=style.marker,
        markersize=5,
        markevery=max(1, len(kept) // MARKERS_PER_CURVE),
        label=label,
    )
    mark(line, curve.arm, "mean")
    return line


def extremes(y: FloatArray, stretches: int) -> npt.NDArray[np.intp]:
    """Return the indices of the points of y [n] to draw.

    A short line keeps all its points. A long one keeps its ends, and the lowest and highest point of each of
    `stretches` equal parts. This looks the same at the size of a figure, and keeps the page small enough to open.
    """
    n = len(y)
    if n <= 2 * stretches:
        return np.arange(n)
    length = -(-n // stretches)
    # Pad with the last value. Indices into the padding may exceed n - 1, hence the minimum below.
    padded = np.pad(y, (0, length * stretches - n), mode="edge").reshape(stretches, length)
    starts = length * np.arange(stretches)
    ends = np.array([0, n - 1])
    return np.unique(np.minimum(np.concatenate([ends, starts + padded.argmin(1), starts + padded.argmax(1)]), n - 1))


def _draw_base_model(axes: Axes, base_model: Line | None) -> list[Line2D]:
    """Draw the line of the model before training, if there is one, and return its handle."""
    if base_model is None:
        return []
    return axes.plot(
        base_model.x,
        base_model.y,
        color=GREY,
        linestyle=":",
        linewidth=1.8,
        marker="x",
        markersize=5,
        label=BASE_MODEL,
    )


def count_from_zero(axes: Axes) -> None:
    """Set up axes whose x counts tokens or steps."""
    axes.locator_params(axis="x", integer=True)
    axes.xaxis.set_major_formatter(lambda value, _position: tokens(value))
    axes.set_xlim(left=0)


def log2_scale(axes: Axes, ticks: Sequence[int]) -> None:
    """Make x logarithmic, with ticks at these values only."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


def budget_scale(axes: Axes, budgets: Sequence[int]) -> None:
    """Put ticks at these ascending thinking budgets; x is linear unless small budgets would overlap."""
    if budgets[-1] >= LOG_SCALE_RATIO * budgets[0]:
        log2_scale(axes, budgets)
    else:
        axes.set_xticks(budgets, labels=[f"{budget:,}" for budget in budgets])


def legend_below(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Add a legend below a figure that uses matplotlib's layout engine."""
    legend = figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=legend_columns([str(handle.get_label()) for handle in handles]),
        handlelength=4.0,
    )
    mark_legend(legend, handles)
