"""How far each arm is from the baseline along training, seed by seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reports.analysis import Analysis
from reports.curves import TOKENS, evaluation_curves, paired_curves
from reports.figures import Figure
from reports.figures.lines import count_from_zero, curve_rows, describe_curves, draw_curves
from reports.figures.style import GREY, Drawing, arm_styles, bounded_view, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_paired_difference(analysis: Analysis) -> Drawing | None:
    """None without a pair of cells that were both evaluated along training."""
    sweep, metric, axis = analysis.sweep, analysis.metric, analysis.axis
    start = analysis.base_metrics.get(metric.name)
    # The level of the verdicts, so that the end of a band is the interval of the forest plot.
    alpha = sweep.alpha / max(1, len(analysis.contrasts))
    held_out = evaluation_curves(analysis.measurements, metric.name, axis, alpha, start)
    curves = [curve.scaled(100) for curve in paired_curves(held_out, sweep.baseline, alpha)]
    if not curves:
        return None

    seen = np.concatenate([line.y for curve in curves for line in curve.lines])
    bands = np.concatenate([ends for curve in curves for ends in (curve.low, curve.high)])
    low, high = bounded_view(seen.tolist(), bands.tolist())
    margin = 0.05 * (high - low)

    def set_up(axes: Axes) -> None:
        axes.axhspan(-sweep.margin_pp, sweep.margin_pp, color=GREY, alpha=0.2, linewidth=0)
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=0)
        axes.set_ylim(min(low, -sweep.margin_pp) - margin, max(high, sweep.margin_pp) + margin)
        count_from_zero(axes)

    figure = draw_curves(
        curves,
        arm_styles(sweep.arms, sweep.baseline),
        sweep.baseline,
        xlabel=axis.label,
        ylabel=f"{metric.name} of {metric.task}: difference (pp)",
        set_up=set_up,
    )
    caption = (
        f"{metric.name} on held-out problems of {metric.task} minus that of {short_name(sweep.baseline)} with the same"
        f" seed, at equal {'tokens' if axis == TOKENS else 'steps'}. The evaluations on the way may have fewer"
        " samples than the last, which alone is tested; its difference stands where the two cells end on average."
        f" {describe_curves(curves, alpha)} Grey band: the region of"
        f" equivalence, ±{sweep.margin_pp:g} pp. {axis.note}"
    )
    return Drawing(figure, caption.rstrip(), curve_rows(curves, axis.field, "difference_pp"))


PAIRED_DIFFERENCE = Figure(
    name="paired_difference",
    title="Difference from the baseline along training",
    draw=draw_paired_difference,
    group="Learning",
    order=40,
)
