"""pass@k of the final evaluation, the base model beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.analysis import Analysis
from reports.curves import Line, pass_at_k_curves, pass_at_k_points, to_line
from reports.figures.lines import curve_rows, describe_curves, draw_curves
from reports.figures.style import BASE_MODEL, Drawing, arm_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "pass_at_k"
TITLE = "pass@k"


def draw(analysis: Analysis) -> Drawing | None:
    """None when fewer than two k were evaluated: a point is no curve."""
    sweep = analysis.sweep
    curves = pass_at_k_curves(analysis.measurements, sweep.alpha)
    ks = sorted({int(x) for curve in curves for line in curve.lines for x in line.x})
    if len(ks) < 2:
        return None

    def set_up(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, labels=[str(k) for k in ks])
        axes.minorticks_off()

    base_model = _base_model(analysis)
    figure = draw_curves(
        curves,
        arm_styles(sweep.arms, sweep.baseline),
        sweep.baseline,
        ylabel=f"pass@k of {analysis.metric.task}",
        xlabel="k (log scale)",
        base_model=base_model,
        set_up=set_up,
    )
    caption = f"Final evaluation on {analysis.metric.task}. {describe_curves(curves, sweep.alpha)}"
    rows = curve_rows(curves, "k", "pass_at_k")
    if base_model is not None:
        caption += " Dotted grey: the model before training, evaluated once."
        rows += [
            {"arm": BASE_MODEL, "seed": "", "k": float(k), "pass_at_k": float(value)}
            for k, value in zip(base_model.x, base_model.y, strict=True)
        ]
    return Drawing(figure, caption, rows)


def _base_model(analysis: Analysis) -> Line | None:
    line = to_line(0, pass_at_k_points(analysis.base_metrics))
    return line if len(line.x) else None
