"""Accuracy over thinking budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.drawing.curves import curve_rows, describe_curves, draw_curves
from reports.drawing.rendering import Drawing
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.curves import Points, curves_of
from reports.measure.measurements import Measurement
from reports.measure.modes import mode_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# With a larger ratio of the largest to the smallest budget, small ones would overlap on a linear axis.
LOG_SCALE_RATIO = 8


def draw_thinking_budgets(analysis: Analysis) -> Drawing | None:
    """None with fewer than two budgets of the task whose modes are evaluated first."""
    found = mode_scores(analysis)
    task = found[0].task if found else None
    at = {score.budget_tokens: score.asked for score in found if score.task == task and score.budget_tokens}
    budgets = sorted(budget for budget in at if budget is not None)
    if len(budgets) < 2:
        return None

    def points(m: Measurement) -> Points:
        return [(budget, m.on_task(at[budget]).score_pp) for budget in budgets]

    def set_up(axes: Axes) -> None:
        if budgets[-1] >= LOG_SCALE_RATIO * budgets[0]:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        axes.set_xticks(budgets, labels=[f"{budget:,}" for budget in budgets])

    curves = curves_of(analysis, points)
    name = analysis.metric.name
    figure = draw_curves(
        analysis, curves, xlabel="thinking budget (tokens)", ylabel=f"{name} of {task} (%)", set_up=set_up
    )
    caption = (
        f"Final {name} on {task} where thinking is cut after so many tokens and the answer is asked for. The table of"
        f" modes has the score without a budget, and the tokens spent. {describe_curves(curves, analysis.sweep.alpha)}"
    )
    return Drawing(figure, caption, curve_rows(curves, "budget_tokens", "score_pp"))


THINKING_BUDGETS = Figure(
    name="thinking_budgets", title="Thinking budgets", draw=draw_thinking_budgets, group="Result", order=145
)
