"""What the update does to the tokens of reflection words."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.style import Drawing
from reports.figures.word_panels import draw_words
from reports.reflection.curves import ADVANTAGE, BOUNDED, RATIO


def draw_reflection_update(analysis: Analysis) -> Drawing | None:
    """None where no word occurs or no tokens are recorded."""
    return draw_words(
        analysis,
        (ADVANTAGE, RATIO, BOUNDED),
        ("tokens of reflection words", "all other tokens"),
        "Mean advantage of the tokens; their mean importance ratio over the optimiser steps on a rollout batch, which "
        "is 1 at the first of them; and how often the objective's rule clipped or masked them.",
    )


REFLECTION_UPDATE = Figure(
    name="reflection_update",
    title="Reflection tokens: advantage, ratio and clipping",
    draw=draw_reflection_update,
    group="Policy",
    order=220,
)
