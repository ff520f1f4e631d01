"""Held-out learning curves: the compared metric over training."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.curves import evaluation_curves
from reports.figures import Figure
from reports.figures.style import Drawing
from reports.figures.training import draw_training


def draw_learning(analysis: Analysis) -> Drawing | None:
    """None when no cell was evaluated more than once: a point is no curve."""
    sweep, metric = analysis.sweep, analysis.metric
    start = analysis.base_metrics.get(metric.name)
    curves = evaluation_curves(analysis.measurements, metric.name, analysis.axis, sweep.alpha, start)
    if all(len(line.x) < 2 for curve in curves for line in curve.lines):
        return None
    what = (
        f"{metric.name} on held-out problems of {metric.task}; the last point is the final, compared evaluation"
        f"{'' if start is None else ', the first the model before training'}."
    )
    return draw_training(analysis, curves, metric.name, f"{metric.name} of {metric.task}, held out", what)


LEARNING = Figure(name="learning", title="Held-out learning curves", draw=draw_learning, group="Learning", order=20)
