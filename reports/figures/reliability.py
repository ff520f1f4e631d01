"""Reliability diagram: how often an answer is right against how often the policy gives it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.analysis import Analysis
from reports.curves import Curve, Line, to_line
from reports.figures import Figure
from reports.figures.lines import draw_curves, seeds_per_arm
from reports.figures.style import BASE_MODEL, GREY, Drawing, arm_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Bin = dict[str, Any]


def draw_reliability(analysis: Analysis) -> Drawing | None:
    """None when no final evaluation has a reliability diagram: its samples were not drawn from the policy itself."""
    sweep = analysis.sweep
    by_arm = {
        arm: {m.cell.seed: bins for m in cells if m.final is not None and (bins := m.final.get("reliability"))}
        for arm, cells in analysis.measurements.items()
    }
    by_arm = {arm: by_seed for arm, by_seed in by_arm.items() if by_seed}
    if not by_arm:
        return None
    base_bins = (analysis.base_evaluation or {}).get("reliability")
    curves = [_curve(arm, by_seed) for arm, by_seed in by_arm.items()]
    figure = draw_curves(
        curves,
        arm_styles(sweep.arms, sweep.baseline),
        sweep.baseline,
        xlabel="confidence (answer frequency)",
        ylabel="share right",
        base_model=_line(0, base_bins) if base_bins else None,
        set_up=_unit_square,
    )
    n_bins = len(next(iter(next(iter(by_arm.values())).values())))
    caption = (
        f"Final evaluation on {analysis.metric.task}: share of samples that are right against their confidence, the"
        " share of the other samples of the same problem that give the same answer. A point for each of"
        f" {n_bins} equal-width bins of confidence that holds samples. Grey diagonal: right as often as confident."
        f" {_describe(curves)}"
    )
    rows = [row for arm, by_seed in by_arm.items() for seed, bins in by_seed.items() for row in _rows(arm, seed, bins)]
    if base_bins:
        caption += " Dotted grey: the model before training, evaluated once."
        rows += _rows(BASE_MODEL, "", base_bins)
    return Drawing(figure, caption, rows)


def _curve(arm: str, by_seed: dict[int, list[Bin]]) -> Curve:
    """The mean over seeds in each bin, weighted by their samples there, as many seeds have few in some."""
    pooled = _line(0, [_pooled(bins) for bins in zip(*by_seed.values(), strict=True)])
    no_band = np.full(len(pooled.x), math.nan)
    return Curve(arm, [_line(seed, bins) for seed, bins in by_seed.items()], pooled.x, pooled.y, no_band, no_band)


def _pooled(bins: Sequence[Bin]) -> Bin:
    count = sum(inside["count"] for inside in bins)
    filled = [inside for inside in bins if inside["count"]]
    return {
        key: sum(inside["count"] * inside[key] for inside in filled) / count if count else None
        for key in ("confidence", "correct_frac")
    }


def _line(seed: int, bins: Sequence[Bin]) -> Line:
    return to_line(seed, [(i["confidence"], i["correct_frac"]) for i in bins if i["confidence"] is not None])


def _describe(curves: Sequence[Curve]) -> str:
    if all(curve.n == 1 for curve in curves):
        return "One seed per arm (n = 1); no band."
    seeds = seeds_per_arm([curve.n for curve in curves])
    return f"Thin lines: seeds ({seeds}); thick line: their samples together; no band."


def _unit_square(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, zorder=0)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def _rows(arm: str, seed: int | str, bins: Sequence[Bin]) -> list[dict[str, str | int | float]]:
    return [{"arm": arm, "seed": seed, **inside} for inside in bins if inside["count"]]


RELIABILITY = Figure(
    name="reliability", title="Calibration of answer frequencies", draw=draw_reliability, group="Policy", order=190
)
