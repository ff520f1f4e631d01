"""Held-out learning curves: the compared metric over generated tokens."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.curves import evaluation_curves
from reports.figures.lines import curve_rows, describe_curves, draw_curves
from reports.figures.style import Drawing, arm_styles

NAME = "learning"
TITLE = "Held-out learning curves"


def draw(analysis: Analysis) -> Drawing | None:
    """None when no cell was evaluated more than once: a point is no curve."""
    sweep, metric = analysis.sweep, analysis.metric
    start = analysis.base_metrics.get(metric.name)
    curves = evaluation_curves(analysis.measurements, metric.name, sweep.alpha, start)
    if all(len(line.x) < 2 for curve in curves for line in curve.lines):
        return None
    figure = draw_curves(
        curves,
        arm_styles(sweep.arms, sweep.baseline),
        sweep.baseline,
        ylabel=f"{metric.name} of {metric.task}, held out",
    )
    caption = (
        f"{metric.name} on held-out problems of {metric.task}; the last point is the final, compared evaluation"
        f"{'' if start is None else ', the first the model before RL'}."
        f" {describe_curves(curves, sweep.alpha)}"
    )
    return Drawing(figure, caption, curve_rows(curves, "generated_tokens", metric.name))
