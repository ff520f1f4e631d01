"""What preference training does to the two sides of its pairs: a row of panels for each arm that trains on pairs."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.grid import Column, Trace, draw_step_grid
from reports.figures.style import Drawing

COLUMNS = (
    Column(
        "log-prob (nats per token)",
        Trace("logps/chosen_mean", "chosen"),
        Trace("logps/rejected_mean", "rejected"),
    ),
    Column("margin of rewards", Trace("rewards/margin"), reference=0, own_scale=True),
    Column("accuracy of rewards", Trace("rewards/accuracy"), reference=0.5, limits=(-0.03, 1.03)),
)


def draw_preference(analysis: Analysis) -> Drawing | None:
    """None when no cell trained on pairs."""
    return draw_step_grid(
        analysis,
        COLUMNS,
        "Mean log-prob of a token of the chosen and of the rejected answers under the policy: the usual failure is that"
        " both fall while the margin grows. Rewards are those of the arm's objective: the margin, chosen minus"
        " rejected, is on its scale and so has an axis for each arm; accuracy is the share of pairs with a margin above"
        " 0, those without one counting half. Grey lines: no margin, guessing.",
    )


PREFERENCE = Figure(
    name="preference", title="Chosen and rejected answers in training", draw=draw_preference, group="Learning", order=60
)
