"""Curves of quantities recorded along training."""

from __future__ import annotations

from collections.abc import Sequence

from reports.analysis import Analysis
from reports.curves import Curve, step_curves
from reports.figures.lines import curve_rows, describe_curves, draw_curves
from reports.figures.style import Drawing, arm_styles


def draw_step_field(analysis: Analysis, key: str, ylabel: str, what: str) -> Drawing | None:
    """One field of steps.jsonl over training; None when no cell recorded it."""
    curves = step_curves(analysis.measurements, key, analysis.axis, analysis.sweep.alpha)
    return draw_training(analysis, curves, key, ylabel, what) if curves else None


def draw_training(analysis: Analysis, curves: Sequence[Curve], name: str, ylabel: str, what: str) -> Drawing:
    """Curves over training. name: of y in the data. what: the beginning of the caption."""
    sweep, axis = analysis.sweep, analysis.axis
    figure = draw_curves(
        curves, arm_styles(sweep.arms, sweep.baseline), sweep.baseline, xlabel=axis.label, ylabel=ylabel
    )
    caption = f"{what} {describe_curves(curves, sweep.alpha)} {axis.note}".rstrip()
    return Drawing(figure, caption, curve_rows(curves, axis.field, name))
