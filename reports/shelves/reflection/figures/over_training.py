"""Reflection words compared with everything else over training: a row of panels for each arm, a column per quantity."""

from __future__ import annotations

from collections.abc import Sequence

from harness.words import said
from reports.drawing.grid import Column, Trace, along_training, describe_grid, draw_grid, grid_rows
from reports.drawing.rendering import Drawing
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.curves import training_axis
from reports.shelves.reflection import read_reflection
from reports.shelves.reflection.curves import (
    ADVANTAGE,
    BOUNDED,
    ENTROPY,
    FREQUENCY,
    LOGP,
    RATIO,
    RIGHT,
    Quantity,
    word_curves,
)

SAME_WORDS = said("reports.shelves.reflection.words_how_they_read")


def draw_reflection_words(analysis: Analysis) -> Drawing | None:
    """Draw how often the policy writes the words, and whether answers with one are right; None if no word occurs."""
    found = read_reflection(analysis)
    return _draw_words(
        analysis,
        (FREQUENCY, RIGHT),
        ("with such a word", "without"),
        said(
            "reports.shelves.reflection.occurrences_reflection_words_among",
            words=", ".join(found.words),
            coverage=found.coverage,
        ),
    )


def draw_reflection_policy(analysis: Analysis) -> Drawing | None:
    """Draw the tokens' log-prob and entropy when sampled; None if no word occurs or no tokens were recorded."""
    return _draw_words(
        analysis,
        (LOGP, ENTROPY),
        ("of such words", "of all others"),
        said("reports.shelves.reflection.before_each_update_mean", same_words=SAME_WORDS),
    )


def draw_reflection_update(analysis: Analysis) -> Drawing | None:
    """Draw how the update treats the tokens; None if no word occurs or no tokens were recorded."""
    return _draw_words(
        analysis,
        (ADVANTAGE, RATIO, BOUNDED),
        ("of such words", "of all others"),
        said("reports.shelves.reflection.mean_advantage_tokens_their", same_words=SAME_WORDS),
    )


def _draw_words(
    analysis: Analysis, quantities: Sequence[Quantity], labels: tuple[str, str], what: str
) -> Drawing | None:
    """Draw a column for each quantity; None if no word occurs or none of the quantities was recorded.

    labels: the names of the words' line and of the other line.
    what: the beginning of the caption.
    """
    axis = training_axis(analysis)
    columns = [_column(quantity, labels) for quantity in quantities]
    sides = {side.name: side.word for side in quantities}
    sides |= {f"other_{side.name}": side.other for side in quantities if side.other is not None}
    found = {name: word_curves(analysis, side) for name, side in sides.items()}
    arms = {arm for quantity in quantities for arm in found[quantity.name]}
    by_field = {name: {arm: curve for arm, curve in curves.items() if arm in arms} for name, curves in found.items()}
    figure = draw_grid(analysis, columns, by_field, axis.label, along_training)
    if figure is None:
        return None
    return Drawing(figure, f"{what} {describe_grid(analysis, by_field)}", grid_rows(by_field, axis.field))


def _column(quantity: Quantity, labels: tuple[str, str]) -> Column:
    if quantity.other is None:
        return Column(quantity.heading, Trace(quantity.name))
    word, other = labels
    return Column(quantity.heading, Trace(quantity.name, word), Trace(f"other_{quantity.name}", other))


REFLECTION_WORDS = Figure(
    name="reflection_words", title="Reflection words in training", draw=draw_reflection_words, group="Policy", order=200
)
REFLECTION_POLICY = Figure(
    name="reflection_policy",
    title=said("reports.shelves.reflection.reflection_tokens_log_prob"),
    draw=draw_reflection_policy,
    group="Policy",
    order=210,
)
REFLECTION_UPDATE = Figure(
    name="reflection_update",
    title=said("reports.shelves.reflection.reflection_tokens_advantage_ratio"),
    draw=draw_reflection_update,
    group="Policy",
    order=220,
)
