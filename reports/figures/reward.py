"""Training reward, kept apart from the held-out score."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.style import Drawing
from reports.figures.training import draw_step_field


def draw_reward(analysis: Analysis) -> Drawing | None:
    what = "Mean reward of the step's own rollouts, on training prompts: not what arms are compared on."
    return draw_step_field(analysis, "reward/mean", "training reward", what)


REWARD = Figure(name="reward", title="Training reward", draw=draw_reward, group="Learning", order=30)
