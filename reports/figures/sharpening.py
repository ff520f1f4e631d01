"""Sharpening or learning: pass@k of the trained policy minus that of the model before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.lines import curve_rows, describe_curves, draw_curves
from reports.figures.over_k import evaluated_k, log2_axis
from reports.figures.style import GREY, Drawing, arm_styles
from reports.sharpening import gain_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_sharpening(analysis: Analysis) -> Drawing | None:
    """None without pass@k at two k or more, before and after training."""
    sweep = analysis.sweep
    curves = gain_curves(analysis)
    if not curves:
        return None
    log2 = log2_axis(evaluated_k(curves))

    def set_up(axes: Axes) -> None:
        log2(axes)
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=0)

    figure = draw_curves(
        curves,
        arm_styles(sweep.arms, sweep.baseline),
        sweep.baseline,
        ylabel="pass@k: trained - before (pp)",
        xlabel="k (log scale)",
        set_up=set_up,
    )
    caption = (
        f"pass@k on {analysis.metric.task} after training minus that of the model before it. A line that falls below 0"
        " at large k says that training made likely what the model could do before, and lost variety; one that stays"
        f" above says that it solves more problems. {describe_curves(curves, sweep.alpha)} The model before training is"
        " evaluated once: its own noise is not in the band. Crossings of 0 are in the table below."
    )
    return Drawing(figure, caption, curve_rows(curves, "k", "gain_pp"))


SHARPENING = Figure(name="sharpening", title="Sharpening or learning", draw=draw_sharpening, group="Result", order=170)
