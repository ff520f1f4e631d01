"""The final evaluation's answers beyond right and wrong: how many differ, how well their frequency is calibrated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from harness.records.rows import Bin
from harness.words import said
from reports.drawing.curves import describe_seeds, draw_curves, seeds_per_arm
from reports.drawing.marks import mark
from reports.drawing.panels import MEAN_Y, SEEDS_Y, as_strip, hide_labels, share_limits, strip_panels
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import BASE_MODEL, GREY, arm_styles
from reports.figures import Figure
from reports.formats import number
from reports.measure import Analysis
from reports.measure.curves import Curve, Line, to_line
from reports.measure.measurements import finite
from reports.statistics import MIN_PAIRS, t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DISTINCT = "distinct_answers"


def draw_distinct_answers(analysis: Analysis) -> Drawing | None:
    """Draw the number of different answers to a problem among its samples; None if no final evaluation counted them."""
    sweep = analysis.sweep
    by_arm = analysis.by_seed(lambda m: m.final_value(DISTINCT))
    if not by_arm:
        return None
    before = _distinct_before(analysis)
    styles = arm_styles(sweep.arms, sweep.baseline)
    figure, panels = strip_panels(len(by_arm)).draw()
    strips = [axes for (axes,) in panels]
    for axes, (arm, by_seed) in zip(strips, by_arm.items(), strict=True):
        style, values = styles[arm], [*by_seed.values()]
        mean = sum(values) / len(values)
        if len(values) >= MIN_PAIRS:
            (bar,) = axes.plot(t_interval(values, sweep.alpha), [MEAN_Y, MEAN_Y], color=style.color, linewidth=2.0)
            mark(bar, arm, "interval")
        (dots,) = axes.plot(values, [SEEDS_Y] * len(values), "o", color=style.color, markersize=4, alpha=0.7)
        mark(dots, arm, "seed", [*by_seed])
        mark(axes.plot(mean, MEAN_Y, style.marker, color=style.color, markersize=8)[0], arm, "mean")
        # The model before training has no seeds, so it is a cross without an interval in every strip.
        if before is not None:
            axes.plot(before, MEAN_Y, "x", color=GREY, markersize=7, markeredgewidth=1.8)
        as_strip(axes, arm, f"{number(mean)} (n = {len(values)})")
        axes.margins(x=0.08)
    share_limits(strips, "x")
    hide_labels(strips[:-1], "x")
    strips[-1].set_xlabel(said("reports.different_answers_per_problem", task=analysis.metric.task))
    samples = " or ".join(map(str, sorted(_sample_counts(analysis))))
    caption = said(
        "reports.number_different_answers_among",
        samples=samples,
        task=analysis.metric.task,
        describe_seeds=describe_seeds([*map(len, by_arm.values())], sweep.alpha, "bar"),
    )
    rows: list[DataRow] = [
        {"arm": arm, "seed": seed, DISTINCT: value}
        for arm, by_seed in by_arm.items()
        for seed, value in by_seed.items()
    ]
    if before is not None:
        caption += said("reports.model_before_training", before=number(before))
        rows.append({"arm": BASE_MODEL, "seed": "", DISTINCT: before})
    return Drawing(figure, caption, rows)


def _distinct_before(analysis: Analysis) -> float | None:
    """Return the number for the model before training, or None if it was evaluated with another number of samples.

    More samples give more different answers, so the numbers would not be comparable.
    """
    base = analysis.base_evaluation()
    if base is None or base.get("n_samples") not in _sample_counts(analysis):
        return None
    return finite(base["metrics"].get(DISTINCT))


def _sample_counts(analysis: Analysis) -> set[int]:
    """Return the numbers of samples per problem in the final evaluations."""
    finals = [m.final for cells in analysis.measurements.values() for m in cells]
    return {final["n_samples"] for final in finals if final is not None and "n_samples" in final}


def draw_reliability(analysis: Analysis) -> Drawing | None:
    """Draw how often an answer is right against how often the policy gives it.

    None if no final evaluation recorded reliability, which requires sampling from the policy itself.
    """
    by_arm = analysis.by_seed(lambda m: None if m.final is None else m.final.get("reliability") or None)
    if not by_arm:
        return None
    base = analysis.base_evaluation()
    base_bins = None if base is None else base.get("reliability")
    curves = [_reliability_curve(arm, by_seed) for arm, by_seed in by_arm.items()]
    figure = draw_curves(
        analysis,
        curves,
        xlabel="confidence (answer frequency)",
        ylabel="share right",
        base_model=_reliability_line(0, base_bins) if base_bins else None,
        set_up=_unit_square,
    )
    # All evaluations have the same bins.
    n_bins = len(next(iter(next(iter(by_arm.values())).values())))
    caption = said(
        "reports.final_evaluation_on_share",
        task=analysis.metric.task,
        n_bins=n_bins,
        describe_reliability=_describe_reliability(curves),
    )
    rows = [
        row for arm, by_seed in by_arm.items() for seed, bins in by_seed.items() for row in _bin_rows(arm, seed, bins)
    ]
    if base_bins:
        rows += _bin_rows(BASE_MODEL, "", base_bins)
    return Drawing(figure, caption, rows)


def _reliability_curve(arm: str, by_seed: dict[int, Sequence[Bin]]) -> Curve:
    """Return the curve of an arm: the mean over seeds in each bin, weighted by samples.

    Many seeds have few samples in some bins, where an unweighted mean would be noisy.
    """
    pooled = _reliability_line(0, [_pooled(bins) for bins in zip(*by_seed.values(), strict=True)])
    # Seeds fill different bins with different numbers of samples, so there is no t interval over seeds.
    no_band = np.full(len(pooled.x), math.nan)
    lines = [_reliability_line(seed, bins) for seed, bins in by_seed.items()]
    return Curve(arm, lines, pooled.x, pooled.y, no_band, no_band)


def _pooled(bins: Sequence[Bin]) -> Bin:
    """Merge one bin over seeds: means weighted by the number of samples, or None if the bin is empty."""
    count = sum(inside["count"] for inside in bins)
    filled = [(inside["count"], inside["confidence"] or 0.0, inside["correct_frac"] or 0.0) for inside in bins]
    confidence, correct = (
        sum(inside[0] * inside[place] for inside in filled) / count if count else None for place in (1, 2)
    )
    return {"count": count, "confidence": confidence, "correct_frac": correct}


def _reliability_line(seed: int, bins: Sequence[Bin]) -> Line:
    return to_line(seed, [(i["confidence"], i["correct_frac"]) for i in bins if i["confidence"] is not None])


def _describe_reliability(curves: Sequence[Curve]) -> str:
    if all(curve.n == 1 for curve in curves):
        return said("reports.one_seed_per_arm_describe_reliability")
    seeds = seeds_per_arm([curve.n for curve in curves])
    return said("reports.seeds_thick_line_all", seeds=seeds)


def _unit_square(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, zorder=0)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def _bin_rows(arm: str, seed: int | str, bins: Sequence[Bin]) -> list[DataRow]:
    return [{"arm": arm, "seed": seed, **cast(DataRow, inside)} for inside in bins if inside["count"]]


DISTINCT_ANSWERS = Figure(
    name="distinct_answers",
    title="Different answers to a problem",
    draw=draw_distinct_answers,
    group="Policy",
    order=180,
)
RELIABILITY = Figure(
    name="reliability", title="Calibration of answer frequencies", draw=draw_reliability, group="Policy", order=190
)
