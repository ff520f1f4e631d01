"""Over-optimisation: proxy and true reward against the KL to the starting policy, with best of n as a reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.drawing.curves import (
    MAX_OVERLAID_ARMS,
    PANEL_CHARACTERS,
    arm_label,
    legend_below,
    panel_columns,
    seeds_per_arm,
)
from reports.drawing.panels import Panels, hide_labels, legend_at_bottom, share_limits
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, SEED_ALPHA, ArmStyle, arm_styles, is_narrow, new_figure
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.overoptimisation import STRETCHES, ArmPaths, Path, arm_paths
from reports.statistics import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.lines import Line2D


X_LABEL = said("reports.shelves.learned.kl_starting_policy_nats")
Y_LABELS = ("proxy (sd)", "truth (% right)")
BEST_OF_N = "best of n"
# The smallest distance between two ticks, as a share of the square-root axis. Closer labels would touch.
TICK_DISTANCE_FRAC = 0.09

Yardstick = list[dict[str, int | float]]
"""Results of picking, by the proxy, the best of n completions of the starting policy: a row for each n."""


def draw_overoptimisation(analysis: Analysis) -> Drawing | None:
    """Draw proxy and true reward against the KL; None if no cell recorded all three."""
    sweep = analysis.sweep
    paths = {arm: found for arm, cells in analysis.measurements.items() if (found := arm_paths(cells)) is not None}
    if not paths:
        return None
    measured = sweep.best_of_n
    yardsticks: dict[str, Yardstick] = {arm: measured.get(arm) or [] for arm in paths}
    first = next(iter(yardsticks.values()))
    # Arms with different proxies have different references, so draw each arm next to its own.
    overlaid = len(paths) <= MAX_OVERLAID_ARMS and all(rows == first for rows in yardsticks.values())
    styles = arm_styles(sweep.arms, sweep.baseline)
    figure = _overlay(paths, first, styles) if overlaid else _panels(paths, yardsticks, styles)
    return Drawing(figure, _caption(paths, any(yardsticks.values())), _rows(paths, yardsticks))


def _overlay(paths: Mapping[str, ArmPaths], yardstick: Yardstick, styles: Mapping[str, ArmStyle]) -> MatplotlibFigure:
    """Draw all arms in one pair of panels, with the reference that they share."""
    figure = new_figure(5.4)
    pair = figure.subplots(2, 1, sharex=True)
    for arm, found in paths.items():
        _draw_seeds(pair, found, styles[arm])
    handles = _draw_yardstick(pair, yardstick)
    handles = [
        _draw_path(pair, found.mean, styles[arm], arm_label(arm, len(found.seeds))) for arm, found in paths.items()
    ] + handles
    _scale_x(pair, paths.values(), [yardstick])
    for axes, y_label in zip(pair, Y_LABELS, strict=True):
        axes.set_ylabel(y_label)
    pair[1].set_xlabel(X_LABEL.replace(" (", "\n(") if is_narrow() else X_LABEL)
    legend_below(figure, handles)
    return figure


def _panels(
    paths: Mapping[str, ArmPaths], yardsticks: Mapping[str, Yardstick], styles: Mapping[str, ArmStyle]
) -> MatplotlibFigure:
    """Draw a pair of panels for each arm, the proxy above the true reward."""
    columns = panel_columns()
    rows = -(-len(paths) // columns)
    layout = Panels(2 * rows, columns, height=1.0, column_gap=0.65, row_gap=0.42, left=0.65, top=0.42, bottom=0.66)
    figure, grid = layout.draw([BEST_OF_N] if any(yardsticks.values()) else [])
    # Each row of arms takes two rows of the grid.
    pairs = [(grid[2 * row][column], grid[2 * row + 1][column]) for row in range(rows) for column in range(columns)]
    filled = pairs[: len(paths)]
    handles: list[Line2D] = []
    for (arm, found), pair in zip(paths.items(), filled, strict=True):
        for axes, y_label in zip(pair, Y_LABELS, strict=True):
            axes.set_ylabel(y_label)
            axes.yaxis.set_label_coords(-0.16 if is_narrow() else -0.2, 0.5)
        _draw_seeds(pair, found, styles[arm])
        handles = _draw_yardstick(pair, yardsticks[arm]) or handles
        _draw_path(pair, found.mean, styles[arm], "")
        pair[0].set_title(arm_label(arm, len(found.seeds), PANEL_CHARACTERS), loc="left")
        _scale_x(pair, paths.values(), yardsticks.values())
    for of_kind in zip(*filled, strict=True):
        share_limits(of_kind, "y")
    hide_labels((proxy for proxy, _ in filled), "x")
    hide_labels((truth for _, truth in filled[:-columns]), "x")
    for _, truth in filled[-columns:]:
        truth.set_xlabel(X_LABEL.replace(" (", "\n("))
    for axes in (axes for pair in pairs[len(paths) :] for axes in pair):
        axes.set_visible(False)
    if handles:
        legend_at_bottom(figure, handles)
    return figure


def _draw_seeds(pair: Sequence[Axes], paths: ArmPaths, style: ArmStyle) -> None:
    if len(paths.seeds) == 1:
        return
    for path in paths.seeds.values():
        for axes, y in zip(pair, _heights(path), strict=True):
            axes.plot(path.kl_nats, y, color=style.color, linewidth=0.6, alpha=SEED_ALPHA)


def _draw_path(pair: Sequence[Axes], path: Path, style: ArmStyle, label: str) -> Line2D:
    """Draw the mean path of an arm, with a larger marker at its end, and return its handle."""
    lines = []
    for axes, y in zip(pair, _heights(path), strict=True):
        (line,) = axes.plot(path.kl_nats, y, color=style.color, marker=style.marker, linestyle=style.dash, label=label)
        line.set(linewidth=1.8, markersize=3.5)
        lines.append(line)
        axes.plot(path.kl_nats[-1:], y[-1:], color=style.color, marker=style.marker, markersize=8)
    return lines[0]


def _draw_yardstick(pair: Sequence[Axes], yardstick: Yardstick) -> list[Line2D]:
    lines = []
    if yardstick:
        kl_nats = [row["kl_nats"] for row in yardstick]
        heights = [row["proxy"] for row in yardstick], [100 * row["correct"] for row in yardstick]
        for axes, y in zip(pair, heights, strict=True):
            lines += axes.plot(
                kl_nats, y, color=GREY, linestyle=":", linewidth=1.8, marker="x", markersize=5, label=BEST_OF_N
            )
    return lines[:1]


def _heights(path: Path) -> tuple[FloatArray, FloatArray]:
    return path.proxy_sd, 100 * path.correct


def _scale_x(pair: Sequence[Axes], paths: Iterable[ArmPaths], yardsticks: Iterable[Yardstick]) -> None:
    """Give panels the same square-root axis, on which a gain that grows like sqrt(KL) is a straight line."""
    reached = [float(path.kl_nats.max()) for found in paths for path in found.seeds.values()]
    reached += [row["kl_nats"] for rows in yardsticks for row in rows]
    largest = max(0.0, *reached) or 1.0  # The policy may not have moved.
    for axes in pair:
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
        axes.set_xlim(0, 1.05 * largest)
        axes.set_xticks(ticks := _ticks(largest), labels=[f"{tick:g}" for tick in ticks])


def _ticks(largest: float) -> list[float]:
    """Return 0 and round numbers up to `largest`, far enough apart on the square-root axis."""
    power = math.floor(math.log10(largest))
    round_numbers = [digit * 10.0**exponent for exponent in range(power - 2, power + 1) for digit in (1, 2, 5)]
    ticks = [0.0]
    for tick in round_numbers:
        if tick <= largest and math.sqrt(tick) - math.sqrt(ticks[-1]) > TICK_DISTANCE_FRAC * math.sqrt(largest):
            ticks.append(tick)
    return ticks


def _caption(paths: Mapping[str, ArmPaths], has_yardstick: bool) -> str:
    counts = [len(found.seeds) for found in paths.values()]
    parts = [
        said(
            "reports.shelves.learned.above_reward_arms_reward", stretches=STRETCHES, seeds_per_arm=seeds_per_arm(counts)
        )
    ]
    if has_yardstick:
        parts.append(said("reports.shelves.learned.dotted_grey_here_best"))
    return " ".join(parts)


def _rows(paths: Mapping[str, ArmPaths], yardsticks: Mapping[str, Yardstick]) -> list[DataRow]:
    of_paths: list[DataRow] = [
        {"arm": arm, "seed": seed, "stretch": stretch, "kl_nats": kl, "proxy_sd": proxy, "correct": correct}
        for arm, found in paths.items()
        for seed, path in found.seeds.items()
        for stretch, (kl, proxy, correct) in enumerate(
            zip(path.kl_nats.tolist(), path.proxy_sd.tolist(), path.correct.tolist(), strict=True), start=1
        )
    ]
    best: list[DataRow] = [
        {
            "arm": arm,
            "best_of_n": row["n"],
            "kl_nats": row["kl_nats"],
            "proxy_sd": row["proxy"],
            "correct": row["correct"],
        }
        for arm, yardstick in yardsticks.items()
        for row in yardstick
    ]
    return of_paths + best


OVEROPTIMISATION = Figure(
    name="overoptimisation",
    title=said("reports.shelves.learned.proxy_truth_along_training"),
    draw=draw_overoptimisation,
    group="Learning",
    order=50,
)
