"""The drawing shared by all curves: thin lines for seeds, a thick mean, a t band; panels when arms are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reports.curves import Curve, Line
from reports.figures.style import GREY, MAX_NAME_CHARACTERS, WIDTH_IN, ArmStyle, legend_columns, short_name
from reports.formats import percent, tokens
from reports.statistics import MIN_PAIRS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MAX_OVERLAID_ARMS = 4
PANEL_COLUMNS = 2
PANEL_CHARACTERS = 38
# Markers tell arms apart without colour; more than these on a curve hide it.
MARKERS_PER_CURVE = 10


def draw_curves(
    curves: Sequence[Curve],
    styles: dict[str, ArmStyle],
    baseline: str,
    *,
    ylabel: str,
    xlabel: str = "generated tokens",
    base_model: Line | None = None,
    scale_x: Callable[[Axes], None] | None = None,
) -> Figure:
    """Overlay up to four arms; give each its own panel beyond that, with the baseline's mean in every one."""
    draw = _overlay if len(curves) <= MAX_OVERLAID_ARMS else _panels
    return draw(curves, styles, baseline, xlabel, ylabel, base_model, scale_x or _tokens_axis)


def curve_rows(curves: Sequence[Curve], x_name: str, y_name: str) -> list[dict[str, str | int | float]]:
    """The seeds' own points, as recorded, one a row."""
    return [
        {"arm": curve.arm, "seed": line.seed, x_name: float(x), y_name: float(y)}
        for curve in curves
        for line in curve.lines
        for x, y in zip(line.x, line.y, strict=True)
    ]


def describe_curves(curves: Sequence[Curve], alpha: float) -> str:
    """The part of a caption that says what lines and band are, how many seeds, and how they were put on one grid."""
    counts = sorted({curve.n for curve in curves})
    seeds = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    if counts[-1] == 1:
        return "One seed per arm (n = 1): no band, so nothing is shown of the spread between seeds. No smoothing."
    parts = [f"Thin lines: seeds ({seeds} per arm); thick line: their mean."]
    if counts[-1] >= MIN_PAIRS:
        parts.append(f"Band: pointwise {percent(1 - alpha)} t interval over training seeds.")
    if counts[0] < MIN_PAIRS:
        parts.append(f"Fewer than {MIN_PAIRS} seeds: no band.")
    if not all(np.array_equal(line.x, curve.grid) for curve in curves for line in curve.lines):
        drawn = "Mean and band" if counts[-1] >= MIN_PAIRS else "Mean"
        parts.append(f"{drawn}: seeds interpolated linearly onto a common grid, over the range that all cover.")
    return " ".join([*parts, "No smoothing."])


def _overlay(
    curves: Sequence[Curve],
    styles: dict[str, ArmStyle],
    baseline: str,
    xlabel: str,
    ylabel: str,
    base_model: Line | None,
    scale_x: Callable[[Axes], None],
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, 4.0), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        _draw_seeds_and_band(axes, curve, styles[curve.arm])
    # Means last: no band or seed of another arm covers one.
    handles = [_draw_mean(axes, curve, styles[curve.arm], _label(curve)) for curve in curves]
    handles += _draw_base_model(axes, base_model)
    scale_x(axes)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _legend_below(figure, handles)
    return figure


def _panels(
    curves: Sequence[Curve],
    styles: dict[str, ArmStyle],
    baseline: str,
    xlabel: str,
    ylabel: str,
    base_model: Line | None,
    scale_x: Callable[[Axes], None],
) -> Figure:
    from matplotlib.figure import Figure

    rows = -(-len(curves) // PANEL_COLUMNS)
    figure = Figure(figsize=(WIDTH_IN, 0.8 + 1.7 * rows), layout="constrained")
    grid = figure.subplots(rows, PANEL_COLUMNS, sharex=True, sharey=True, squeeze=False)
    reference = next((curve for curve in curves if curve.arm == baseline), None)
    handles: dict[str, Line2D] = {}
    for curve, axes in zip(curves, grid.flat, strict=False):
        _draw_seeds_and_band(axes, curve, styles[curve.arm])
        references = _draw_base_model(axes, base_model)
        if reference is not None:
            references += axes.plot(
                reference.grid,
                reference.mean,
                color=styles[baseline].color,
                linewidth=0.9,
                label=f"mean of {short_name(baseline)}",
            )
        handles |= {str(handle.get_label()): handle for handle in references}
        if curve is not reference:
            _draw_mean(axes, curve, styles[curve.arm], "")
        axes.set_title(_label(curve, PANEL_CHARACTERS), loc="left")
        scale_x(axes)
    filled = list(grid.flat[: len(curves)])
    for empty in grid.flat[len(curves) :]:
        empty.set_visible(False)
    for axes in filled[-PANEL_COLUMNS:]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(xlabel)
    figure.supylabel(ylabel, fontsize=9)
    if handles:
        _legend_below(figure, list(handles.values()))
    return figure


def _label(curve: Curve, characters: int = 2 * MAX_NAME_CHARACTERS) -> str:
    """Name and number of seeds, on two lines where one is longer than `characters`."""
    name, n = short_name(curve.arm), f"(n = {curve.n})"
    return f"{name} {n}" if len(f"{name} {n}") <= characters else f"{name}\n{n}"


def _draw_seeds_and_band(axes: Axes, curve: Curve, style: ArmStyle) -> None:
    if curve.n == 1:
        return
    axes.fill_between(curve.grid, curve.low, curve.high, color=style.color, alpha=0.14, linewidth=0)
    for line in curve.lines:
        axes.plot(line.x, line.y, color=style.color, linewidth=0.6, alpha=0.4)


def _draw_mean(axes: Axes, curve: Curve, style: ArmStyle, label: str) -> Line2D:
    (line,) = axes.plot(
        curve.grid,
        curve.mean,
        color=style.color,
        linestyle=style.dash,
        linewidth=1.8,
        marker=style.marker,
        markersize=5,
        markevery=max(1, len(curve.grid) // MARKERS_PER_CURVE),
        label=label,
    )
    return line


def _draw_base_model(axes: Axes, base_model: Line | None) -> list[Line2D]:
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
        label="base model",
    )


def _tokens_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(lambda value, _position: tokens(value))
    axes.set_xlim(left=0)


def _legend_below(figure: Figure, handles: Sequence[Line2D]) -> None:
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=legend_columns([str(handle.get_label()) for handle in handles]),
        handlelength=4.0,
    )
