"""Completion length over training: all, right and wrong ones, and how many were cut off."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.grid import Column, Trace, draw_step_grid
from reports.figures.style import Drawing

COLUMNS = (
    Column("tokens per completion", Trace("len/mean", "mean"), Trace("len/p95", "95th percentile")),
    Column("mean tokens by verdict", Trace("len/correct", "right"), Trace("len/incorrect", "wrong")),
    Column("truncated", Trace("len/truncated_frac"), as_percent=True),
)


def draw_length(analysis: Analysis) -> Drawing | None:
    return draw_step_grid(
        analysis,
        COLUMNS,
        "Tokens of a completion in the step's rollouts, truncated ones included, and the share that was cut off at the"
        " limit. A step in which no completion is right, or none is wrong, has no mean of them.",
    )


LENGTH = Figure(name="length", title="Completion length", draw=draw_length, group="Policy", order=120)
