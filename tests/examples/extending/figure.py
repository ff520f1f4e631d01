"""A custom figure: how many tokens a right answer costs while an arm trains.

`plugins: [figure]` in a sweep file puts it on the page of that sweep, and its numbers among the data of the page.
"""

from __future__ import annotations

import numpy as np

from reports.drawing.curves import draw_training
from reports.drawing.rendering import Drawing
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.curves import step_curves
from reports.measure.measurements import Columns
from reports.statistics import FloatArray


def tokens_per_right_answer(steps: Columns) -> FloatArray:
    """steps: the fields of a cell's steps.jsonl, each an array [n_steps], NaN where nothing was recorded."""
    right_frac = steps["reward/correct"]
    # A step without a right answer has no value. Lines skip NaN.
    return steps["len/mean"] / np.where(right_frac > 0, right_frac, np.nan)


def draw(analysis: Analysis) -> Drawing | None:
    """analysis: the finished cells of each arm by seed, and how arms compare."""
    curves = step_curves(analysis, tokens_per_right_answer)
    if not curves:
        return None  # nothing to show: the page omits the figure
    # This draws a line for each seed, with the mean and the t band of each arm. For other figures, draw into a
    # `reports.drawing.style.new_figure` and return a Drawing with a caption and the plotted numbers.
    what = "Mean tokens of a completion over the share of right ones, in the rollouts of each step."
    return draw_training(analysis, curves, "tokens_per_right_answer", "tokens per right answer", what)


TOKENS_PER_RIGHT_ANSWER = Figure(
    name="tokens_per_right_answer",  # the name of its files: figures/<name>.svg and .png, data/<name>.csv
    title="Tokens per right answer",
    draw=draw,
    group="Cost",  # its group on the page: Result, Learning, Policy, Cost or Records
)
