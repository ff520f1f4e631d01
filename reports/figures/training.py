"""Curves of quantities recorded at every training step."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.curves import step_curves
from reports.figures.lines import curve_rows, describe_curves, draw_curves
from reports.figures.style import Drawing, arm_styles


def draw_step_field(analysis: Analysis, key: str, ylabel: str, what: str) -> Drawing | None:
    """One field of steps.jsonl over generated tokens; None when no cell recorded it."""
    sweep = analysis.sweep
    curves = step_curves(analysis.measurements, key, sweep.alpha)
    if not curves:
        return None
    figure = draw_curves(curves, arm_styles(sweep.arms, sweep.baseline), sweep.baseline, ylabel=ylabel)
    return Drawing(
        figure, f"{what} {describe_curves(curves, sweep.alpha)}", curve_rows(curves, "generated_tokens", key)
    )
