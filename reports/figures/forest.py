"""Forest plot: the paired difference of every contrast with its interval, and a dot per seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from reports.analysis import Analysis
from reports.benchmarks import contrasts_by_task
from reports.contrasts import Contrast
from reports.figures.style import GREY, WIDTH_IN, ArmStyle, Drawing, arm_styles, bounded_view, short_name
from reports.formats import interval, percent, signed_pp
from reports.statistics import PairedComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "forest"
TITLE = "Effect of each arm against the baseline"

TEXT_OFFSET = 0.27
DOTS_OFFSET = -0.2


def draw(analysis: Analysis) -> Drawing | None:
    """None without a contrast that has a pair."""
    from matplotlib.figure import Figure

    by_task = {
        task: [(contrast, contrast.comparison) for contrast in contrasts if contrast.comparison is not None]
        for task, contrasts in contrasts_by_task(analysis).items()
    }
    if not by_task:
        return None
    sweep, compared = analysis.sweep, analysis.metric.task
    styles = arm_styles(sweep.arms, sweep.baseline)
    rows = [len(compared_here) for compared_here in by_task.values()]
    height_in = 0.75 + 0.62 * sum(rows) + 0.3 * (len(rows) - 1)
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    view = bounded_view(
        [d for contrasts in by_task.values() for contrast, _ in contrasts for d in contrast.differences_pp],
        [end for contrasts in by_task.values() for contrast, c in contrasts for end in _interval(contrast, c)],
    )
    for axes, (task, contrasts) in zip(panels, by_task.items(), strict=True):
        axes.axvspan(-sweep.margin_pp, sweep.margin_pp, color=GREY, alpha=0.2, linewidth=0)
        axes.axvline(0, color=GREY, linewidth=0.9)
        for row, (contrast, comparison) in enumerate(contrasts):
            _draw_contrast(axes, contrast, comparison, -row, styles[contrast.arm], view, tested=task == compared)
        axes.set_ylim(-len(contrasts) + 0.5, 0.5)
        axes.margins(x=0.06)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        if len(rows) > 1:
            axes.set_title(task if task == compared else f"{task} (not tested)", loc="left", fontweight="bold")
    of_task = f" of {compared}" if len(rows) == 1 else ""
    panels[-1].set_xlabel(f"{analysis.metric.name}{of_task}: difference from {short_name(sweep.baseline)} (pp)")
    return Drawing(
        figure=figure,
        caption=_caption(analysis, by_task, view),
        rows=[
            {"task": task, "arm": c.arm, "baseline": c.baseline, "seed": seed, "difference_pp": difference}
            for task, contrasts in by_task.items()
            for c, _ in contrasts
            for seed, difference in zip(c.seeds, c.differences_pp, strict=True)
        ],
    )


def _draw_contrast(
    axes: Axes,
    contrast: Contrast,
    comparison: PairedComparison,
    y: float,
    style: ArmStyle,
    view: tuple[float, float],
    *,
    tested: bool,
) -> None:
    """view: in which bars are drawn whole. tested: on the compared task, so with its verdict."""
    over_seeds = not math.isnan(comparison.low)
    low, high = _interval(contrast, comparison)
    shown = [max(low, view[0]), min(high, view[1])]
    axes.plot(shown, [y, y], color=style.color, linewidth=2.0, linestyle="-" if over_seeds else ":")
    for end, cut, arrow in ((low, shown[0], "<"), (high, shown[1], ">")):
        if end != cut and not math.isnan(end):
            axes.plot(cut, y, arrow, color=style.color, markersize=7)
    axes.plot(
        comparison.difference,
        y,
        marker=style.marker,
        markersize=8,
        color=style.color,
        markerfacecolor=style.color if over_seeds else "none",
    )
    for seed, difference in zip(contrast.seeds, contrast.differences_pp, strict=True):
        flagged = seed in contrast.flagged_seeds
        axes.plot(
            difference,
            y + DOTS_OFFSET,
            marker="o",
            markersize=4,
            color=style.color,
            alpha=0.7,
            markerfacecolor="none" if flagged else style.color,
        )
    above: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 8.0}
    axes.text(0.0, y + TEXT_OFFSET, short_name(contrast.arm), ha="left", **above)
    verdict = f"{comparison.verdict.replace('_', ' ')}, " if tested else ""
    numbers = f"{signed_pp(comparison.difference)} {interval(low, high)}   {verdict}n = {comparison.n_pairs}"
    axes.text(1.0, y + TEXT_OFFSET, numbers, ha="right", **above)


def _interval(contrast: Contrast, comparison: PairedComparison) -> tuple[float, float]:
    """Over seeds, or of evaluation noise alone where there are too few."""
    if math.isnan(comparison.low):
        return contrast.noise_low_pp, contrast.noise_high_pp
    return comparison.low, comparison.high


def _caption(
    analysis: Analysis, by_task: dict[str, list[tuple[Contrast, PairedComparison]]], view: tuple[float, float]
) -> str:
    sweep = analysis.sweep
    contrasts = [pair for pairs in by_task.values() for pair in pairs]
    m = len(analysis.contrasts)
    pairs = sorted({comparison.n_pairs for _, comparison in contrasts})
    n = f"n = {pairs[0]}" if len(pairs) == 1 else f"n = {pairs[0]} to {pairs[-1]}"
    parts = [f"Paired difference per training seed (small dots, {n} pairs) and their mean (large marker)."]
    if any(comparison.verdict != "no_test" for _, comparison in contrasts):
        shared = f", alpha {sweep.alpha:g} shared by {m} contrasts" if m > 1 else ""
        parts.append(f"Bar: {percent(1 - sweep.alpha / m)} t interval over seeds{shared}.")
    if any(not math.isnan(contrast.noise_low_pp) for contrast, _ in contrasts):
        parts.append(
            "Dotted bar, hollow marker: fewer than three pairs; 95% interval from evaluation noise alone, which does"
            " not include training variance."
        )
    parts.append(f"Grey band: the region of equivalence, ±{sweep.margin_pp:g} pp.")
    if any(end < view[0] or end > view[1] for contrast, c in contrasts for end in _interval(contrast, c)):
        parts.append("An arrow: the bar goes on.")
    if len(by_task) > 1:
        parts.append(f"Only {analysis.metric.task} is compared; on the others the intervals describe.")
    if any(contrast.flagged_seeds for contrast, _ in contrasts):
        parts.append("Hollow dot: a cell of the pair is flagged.")
    return " ".join(parts)
