"""pass@k, maj@k and the gain over the model before training, over k, the number of samples of a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from reports.drawing.curves import curve_rows, describe_curves, draw_curves
from reports.drawing.rendering import Drawing
from reports.drawing.style import BASE_MODEL, GREY
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.curves import Curve
from reports.measure.over_k import base_line_over_k, curves_over_k, gain_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_pass_at_k(analysis: Analysis) -> Drawing | None:
    return _draw_over_k(analysis, "pass", "The chance that at least one of k samples of a problem is right.")


def draw_maj_at_k(analysis: Analysis) -> Drawing | None:
    return _draw_over_k(analysis, "maj", "The chance that a majority vote of k samples of a problem is right.")


def draw_sharpening(analysis: Analysis) -> Drawing | None:
    """None without pass@k at two k or more, before and after training."""
    curves = gain_curves(analysis)
    if not curves:
        return None
    log2 = _log2_axis(_evaluated_k(curves))

    def set_up(axes: Axes) -> None:
        log2(axes)
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=0)

    figure = draw_curves(
        analysis, curves, xlabel="k (log scale)", ylabel="pass@k: trained - before (pp)", set_up=set_up
    )
    caption = (
        f"pass@k on {analysis.metric.task} after training minus pass@k before it. A line that falls below 0 at large k"
        " means that training made likely what the model could already do, and lost variety. A line that stays above 0"
        f" means that the model solves more problems. {describe_curves(curves, analysis.sweep.alpha)} The model before"
        " training is evaluated once, so its noise is not in the band. The table below lists where lines cross 0."
    )
    return Drawing(figure, caption, curve_rows(curves, "k", "gain_pp"))


def _draw_over_k(analysis: Analysis, family: str, what: str) -> Drawing | None:
    """`<family>@k` of every arm and of the model before training; None if fewer than two k were evaluated, since a
    point is not a curve. what: the beginning of the caption."""
    curves = curves_over_k(analysis, family)
    ks = _evaluated_k(curves)
    if len(ks) < 2:
        return None
    base_model = base_line_over_k(analysis.base_metrics, family)
    figure = draw_curves(
        analysis,
        curves,
        xlabel="k (log scale)",
        ylabel=f"{family}@k of {analysis.metric.task}",
        base_model=base_model,
        set_up=_log2_axis(ks),
    )
    caption = f"{what} Final evaluation on {analysis.metric.task}. {describe_curves(curves, analysis.sweep.alpha)}"
    y_name = f"{family}_at_k"
    rows = curve_rows(curves, "k", y_name)
    if base_model is not None:
        caption += " Dotted grey: the model before training, evaluated once."
        rows += [
            {"arm": BASE_MODEL, "seed": "", "k": float(k), y_name: float(value)}
            for k, value in zip(base_model.x, base_model.y, strict=True)
        ]
    return Drawing(figure, caption, rows)


def _evaluated_k(curves: Sequence[Curve]) -> list[int]:
    return sorted({int(x) for curve in curves for line in curve.lines for x in line.x})


def _log2_axis(ks: Sequence[int]) -> Callable[[Axes], None]:
    """Prepares axes with k on a logarithmic scale and a tick at each evaluated k."""

    def set_up(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, labels=[str(k) for k in ks])
        axes.minorticks_off()

    return set_up


PASS_AT_K = Figure(name="pass_at_k", title="pass@k", draw=draw_pass_at_k, group="Result", order=70)
MAJ_AT_K = Figure(name="maj_at_k", title="Majority vote of k samples", draw=draw_maj_at_k, group="Result", order=80)
SHARPENING = Figure(name="sharpening", title="Sharpening or learning", draw=draw_sharpening, group="Result", order=170)
