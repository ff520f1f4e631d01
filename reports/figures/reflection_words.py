"""How often the policy writes reflection words, and whether answers with one are right."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures import Figure
from reports.figures.style import Drawing
from reports.figures.word_panels import draw_words
from reports.reflection.curves import FREQUENCY, RIGHT


def draw_reflection_words(analysis: Analysis) -> Drawing | None:
    """None where no word occurs."""
    return draw_words(
        analysis,
        (FREQUENCY, RIGHT),
        ("completions with such a word", "completions without"),
        "Occurrences of reflection words among the tokens drawn in training, and the share of right answers among the "
        "completions with one and among those without.",
    )


REFLECTION_WORDS = Figure(
    name="reflection_words", title="Reflection words in training", draw=draw_reflection_words, group="Policy", order=200
)
