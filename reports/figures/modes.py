"""The figure of accuracy against the thinking budget."""

from __future__ import annotations

from functools import partial

from harness.words import said
from reports.drawing.curves import budget_scale, curve_rows, describe_curves, draw_curves
from reports.drawing.rendering import Drawing
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.curves import Points, curves_of
from reports.measure.measurements import Measurement
from reports.measure.modes import mode_scores


def draw_thinking_budgets(analysis: Analysis) -> Drawing | None:
    """Draw the score against the thinking budget; None for fewer than two budgets.

    Shows only the first task that the sweep evaluates in several modes.
    """
    found = mode_scores(analysis)
    task = found[0].task if found else None
    at = {score.budget_tokens: score.asked for score in found if score.task == task and score.budget_tokens}
    budgets = sorted(budget for budget in at if budget is not None)
    if len(budgets) < 2:
        return None

    def points(m: Measurement) -> Points:
        return [(budget, m.on_task(at[budget]).score_pp) for budget in budgets]

    curves = curves_of(analysis, points)
    name = analysis.metric.name
    figure = draw_curves(
        analysis,
        curves,
        xlabel="thinking budget (tokens)",
        ylabel=f"{name} of {task} (%)",
        set_up=partial(budget_scale, budgets=budgets),
    )
    caption = said(
        "reports.final_on_where_thinking",
        name=name,
        task=task,
        describe_curves=describe_curves(curves, analysis.sweep.alpha),
    )
    return Drawing(figure, caption, curve_rows(curves, "budget_tokens", "score_pp"))


THINKING_BUDGETS = Figure(
    name="thinking_budgets", title="Thinking budgets", draw=draw_thinking_budgets, group="Result", order=145
)
