"""What the policy thinks of the tokens of reflection words when it draws them."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.style import Drawing
from reports.figures.word_panels import draw_words
from reports.reflection.curves import ENTROPY, LOGP


def draw_reflection_policy(analysis: Analysis) -> Drawing | None:
    """None where no word occurs or no tokens are recorded."""
    return draw_words(
        analysis,
        (LOGP, ENTROPY),
        ("tokens of reflection words", "all other tokens"),
        "Before each update, the mean log-prob of the drawn tokens that wrote reflection words and of all others, and "
        "the mean entropy of the distributions that they were drawn from.",
    )


REFLECTION_POLICY = Figure(
    name="reflection_policy",
    title="Reflection tokens: log-prob and entropy",
    draw=draw_reflection_policy,
    group="Policy",
    order=210,
)
