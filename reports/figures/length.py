"""Completion length over training."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures.style import Drawing
from reports.figures.training import draw_step_field

NAME = "length"
TITLE = "Completion length"


def draw(analysis: Analysis) -> Drawing | None:
    what = "Mean tokens of a completion in the step's rollouts, truncated ones included."
    return draw_step_field(analysis, "len/mean", "tokens per completion", what)
