"""How often the policy writes reflection words, and whether answers with one are right."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.figures.style import Drawing
from reports.figures.word_panels import draw_words
from reports.reflection.curves import FREQUENCY, RIGHT

NAME = "reflection_words"
TITLE = "Reflection words in training"


def draw(analysis: Analysis) -> Drawing | None:
    """None where no word occurs."""
    return draw_words(
        analysis,
        (FREQUENCY, RIGHT),
        ("completions with such a word", "completions without"),
        "Occurrences of reflection words among the tokens drawn in training, and the share of right answers among the "
        "completions with one and among those without.",
    )
