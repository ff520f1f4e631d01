"""The forest plot: the paired difference of every contrast with its interval, and a dot for each seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.words import said
from reports.drawing.marks import mark, name_axes
from reports.drawing.panels import (
    MEAN_Y,
    NARROW_TITLE_IN,
    SEEDS_Y,
    as_strip,
    hide_labels,
    share_limits,
    strip_panels,
    write_above,
)
from reports.drawing.rendering import Drawing
from reports.drawing.style import GREY, ArmStyle, arm_styles, bounded_view, is_narrow, short_name
from reports.figures import Figure
from reports.formats import interval, percent, signed_pp
from reports.measure import Analysis
from reports.measure.across_tasks import contrasts_by_task
from reports.measure.contrasts import Contrast
from reports.statistics import PairedComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes


TASK_ROOM_IN = 0.24
"""The space above the first row of a task, for its heading."""
TASK_OFFSET_POINTS = 17
POINTS_PER_IN = 72


def draw_forest(analysis: Analysis) -> Drawing | None:
    """Draw every contrast with its interval, the largest effect first; None if no contrast has a pair."""
    by_task = contrasts_by_task(analysis)
    if not by_task:
        return None
    sweep, compared = analysis.sweep, analysis.metric.task
    styles = arm_styles(sweep.arms, sweep.baseline)
    shown = [
        (task, contrast, contrast.comparison)
        for task, contrasts in by_task.items()
        for contrast in contrasts
        if contrast.comparison is not None
    ]
    effects = {contrast.arm: comparison.difference for task, contrast, comparison in shown if task == compared}
    # Sort by the effect on the compared task, so that arms have the same order on all tasks.
    order = [*by_task]
    shown.sort(key=lambda row: (order.index(row[0]), -effects.get(row[1].arm, -math.inf)))
    tasks = [task for task, *_ in shown]
    first = {tasks.index(task): task for task in by_task} if len(by_task) > 1 else {}
    figure, panels = strip_panels(len(shown), above=dict.fromkeys(first, TASK_ROOM_IN)).draw()
    view = bounded_view(
        [d for _, contrast, _ in shown for d in contrast.differences_pp],
        [end for _, contrast, comparison in shown for end in _interval(contrast, comparison)],
    )
    strips = [axes for (axes,) in panels]
    for axes, (task, contrast, comparison) in zip(strips, shown, strict=True):
        axes.axvspan(-sweep.margin_pp, sweep.margin_pp, color=GREY, alpha=0.2, linewidth=0)
        axes.axvline(0, color=GREY, linewidth=0.9)
        _draw_contrast(axes, contrast, comparison, styles[contrast.arm], view, tested=task == compared)
        axes.margins(x=0.06)
    share_limits(strips, "x")
    hide_labels(strips[:-1], "x")
    for row, task in first.items():
        heading = task if task == compared else f"{task} (not tested)"
        offset_points = TASK_OFFSET_POINTS + (POINTS_PER_IN * NARROW_TITLE_IN if is_narrow() else 0)
        write_above(strips[row], heading, offset_points, bold=True)
    what = (
        f"{analysis.metric.name}{'' if first else f' of {compared}'}: difference from {short_name(sweep.baseline)} (pp)"
    )
    strips[-1].set_xlabel(said("reports.difference_from_baseline_pp") if is_narrow() else what)
    return Drawing(
        figure=figure,
        caption=_caption(analysis, by_task, view),
        rows=[
            {"task": task, "arm": c.arm, "baseline": c.baseline, "seed": seed, "difference_pp": difference}
            for task, c, _ in shown
            for seed, difference in zip(c.seeds, c.differences_pp, strict=True)
        ],
    )


def _draw_contrast(
    axes: Axes,
    contrast: Contrast,
    comparison: PairedComparison,
    style: ArmStyle,
    view: tuple[float, float],
    *,
    tested: bool,
) -> None:
    """Draw one row of the forest.

    view: the limits at which bars are cut off.
    tested: True if the row is on the compared task, so that it has a verdict.
    """
    over_seeds = not math.isnan(comparison.low)
    low, high = _interval(contrast, comparison)
    shown = [max(low, view[0]), min(high, view[1])]
    (bar,) = axes.plot(shown, [MEAN_Y, MEAN_Y], color=style.color, linewidth=2.0, linestyle="-" if over_seeds else ":")
    mark(bar, contrast.arm, "interval")
    # An arrow shows that a bar continues outside the view.
    for end, cut, arrow in ((low, shown[0], "<"), (high, shown[1], ">")):
        if end != cut and not math.isnan(end):
            axes.plot(cut, MEAN_Y, arrow, color=style.color, markersize=7)
    (dot,) = axes.plot(
        comparison.difference,
        MEAN_Y,
        marker=style.marker,
        markersize=8,
        color=style.color,
        markerfacecolor=style.color if over_seeds else "none",
    )
    mark(dot, contrast.arm, "mean")
    flags = [seed in contrast.flagged_seeds for seed in contrast.seeds]
    for flagged, fill in ((False, style.color), (True, "none")):
        dots = {
            seed: difference
            for seed, difference, is_flagged in zip(contrast.seeds, contrast.differences_pp, flags, strict=True)
            if is_flagged == flagged
        }
        (drawn,) = axes.plot(
            [*dots.values()],
            [SEEDS_Y] * len(dots),
            "o",
            markersize=4,
            color=style.color,
            alpha=0.7,
            markerfacecolor=fill,
        )
        mark(drawn, contrast.arm, "seed", [*dots])
    verdict = f"{comparison.verdict.replace('_', ' ')}, " if tested else ""
    numbers = f"{signed_pp(comparison.difference)} {interval(low, high)}   {verdict}n = {comparison.n_pairs}"
    as_strip(axes, contrast.arm, numbers)
    name_axes(axes, "difference (pp)", "")


def _interval(contrast: Contrast, comparison: PairedComparison) -> tuple[float, float]:
    """Return the interval over seeds or, if their spread is unknown, the interval of evaluation noise alone."""
    if math.isnan(comparison.low):
        return contrast.noise_low_pp, contrast.noise_high_pp
    return comparison.low, comparison.high


def _without_a_pair(by_task: Mapping[str, Sequence[Contrast]]) -> list[str]:
    """Return the arms without any row, and the arms that lack one on some tasks, with these tasks."""
    tasks: dict[str, list[str]] = {}
    for task, contrasts in by_task.items():
        for contrast in contrasts:
            if contrast.comparison is None:
                tasks.setdefault(contrast.arm, []).append(task)
    return [f"{arm} on {', '.join(lost)}" if len(lost) < len(by_task) else arm for arm, lost in tasks.items()]


def _caption(analysis: Analysis, by_task: Mapping[str, Sequence[Contrast]], view: tuple[float, float]) -> str:
    sweep = analysis.sweep
    contrasts = [
        (contrast, contrast.comparison)
        for some in by_task.values()
        for contrast in some
        if contrast.comparison is not None
    ]
    m = len(analysis.contrasts)
    pairs = sorted({comparison.n_pairs for _, comparison in contrasts})
    n = f"n = {pairs[0]}" if len(pairs) == 1 else f"n = {pairs[0]} to {pairs[-1]}"
    n += " pair" if pairs == [1] else " pairs"
    over = "seeds"
    if not analysis.trains:
        n, over = f"n = {len(sweep.seeds)}", f"{n.removeprefix('n = ').removesuffix(' pairs')} problems"
    parts = [said("reports.paired_difference_per_small", seeds=analysis.seeds[:-1], n=n)]
    tested = [comparison for _, comparison in contrasts if not math.isnan(comparison.low)]
    if tested:
        shared = said("reports.alpha_split_over_contrasts", alpha=sweep.alpha, m=m) if m > 1 else ""
        parts.append(
            said("reports.bar_t_interval_over_caption", level=percent(tested[0].level), over=over, shared=shared)
        )
    if any(not math.isnan(contrast.noise_low_pp) for contrast, _ in contrasts):
        parts.append(said("reports.dotted_bar_hollow_marker"))
    parts.append(said("reports.grey_band_region_equivalence", margin_pp=sweep.margin_pp))
    if any(end < view[0] or end > view[1] for contrast, c in contrasts for end in _interval(contrast, c)):
        parts.append(said("reports.arrow_bar_extends_beyond"))
    if len(by_task) > 1:
        parts.append(said("reports.only_tested_on_other", task=analysis.metric.task))
    if any(contrast.flagged_seeds for contrast, _ in contrasts):
        parts.append(said("reports.hollow_dot_cell_pair"))
    if absent := _without_a_pair(by_task):
        parts.append(said("reports.not_shown_because_no_caption", absent="; ".join(absent)))
    return " ".join(parts)


FOREST = Figure(
    name="forest", title=said("reports.effect_each_arm_against"), draw=draw_forest, group="Result", order=10
)
