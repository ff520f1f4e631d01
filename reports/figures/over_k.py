"""Curves of the final evaluation over k, the number of samples of a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from reports.analysis import Analysis
from reports.curves import Curve, base_line_over_k, curves_over_k
from reports.figures.lines import curve_rows, describe_curves, draw_curves
from reports.figures.style import BASE_MODEL, Drawing, arm_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_over_k(analysis: Analysis, family: str, what: str) -> Drawing | None:
    """`<family>@k` of every arm, the model before training beside it; what: the beginning of the caption.

    None when fewer than two k were evaluated: a point is no curve.
    """
    sweep = analysis.sweep
    curves = curves_over_k(analysis.measurements, family, sweep.alpha)
    ks = evaluated_k(curves)
    if len(ks) < 2:
        return None
    base_model = base_line_over_k(analysis.base_metrics, family)
    figure = draw_curves(
        curves,
        arm_styles(sweep.arms, sweep.baseline),
        sweep.baseline,
        ylabel=f"{family}@k of {analysis.metric.task}",
        xlabel="k (log scale)",
        base_model=base_model,
        set_up=log2_axis(ks),
    )
    caption = f"{what} Final evaluation on {analysis.metric.task}. {describe_curves(curves, sweep.alpha)}"
    y_name = f"{family}_at_k"
    rows = curve_rows(curves, "k", y_name)
    if base_model is not None:
        caption += " Dotted grey: the model before training, evaluated once."
        rows += [
            {"arm": BASE_MODEL, "seed": "", "k": float(k), y_name: float(value)}
            for k, value in zip(base_model.x, base_model.y, strict=True)
        ]
    return Drawing(figure, caption, rows)


def evaluated_k(curves: Sequence[Curve]) -> list[int]:
    return sorted({int(x) for curve in curves for line in curve.lines for x in line.x})


def log2_axis(ks: Sequence[int]) -> Callable[[Axes], None]:
    """Sets up axes with k on a logarithmic scale and a tick at each that was evaluated."""

    def set_up(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, labels=[str(k) for k in ks])
        axes.minorticks_off()

    return set_up
