"""Reflection words against everything else over training: a row of panels for each arm, a column for each quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reports.drawing.curves import (
    arm_label,
    count_from_zero,
    curve_rows,
    describe_curves,
    draw_mean,
    draw_seeds_and_band,
)
from reports.drawing.grid import HEADING_OFFSET_POINTS, stacked_panels
from reports.drawing.panels import Panels, keep_only_grid, legend_at_bottom, share_limits, write_above
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import GREY, INK, ArmStyle, arm_styles, is_narrow, say_not_recorded
from reports.extras.reflection import MOST_FILES, read_reflection
from reports.extras.reflection.curves import (
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
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.curves import Curve, training_axis

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

PANELS = partial(Panels, height=1.05, column_gap=0.62, row_gap=0.34, left=0.55, top=0.58)
OTHERS = ArmStyle(GREY, "x", ":")
NARROW_HEADING_IN = 0.6
SAME_WORDS = "The words, and how they are read, are those of the figure on reflection words."


def draw_reflection_words(analysis: Analysis) -> Drawing | None:
    """How often the policy writes the words, and whether answers with one are right; None if no word occurs."""
    return _draw_words(
        analysis,
        (FREQUENCY, RIGHT),
        ("completions with such a word", "completions without"),
        "Occurrences of reflection words among the tokens drawn in training, and the share of right answers among the "
        "completions with one and among those without. Words looked for: "
        f"{', '.join(read_reflection(analysis).words)}. The first point, at 0, is the rollout of the first step, by"
        " the model before any update. Each later point is a stretch of steps, at what was generated before them; a"
        f" stretch without the words has no point. At most {MOST_FILES} files of completions are read, spread over each"
        " run; the steps of other files have no points.",
    )


def draw_reflection_policy(analysis: Analysis) -> Drawing | None:
    """What the policy thinks of the tokens when it draws them; None if no word occurs or no tokens are recorded."""
    return _draw_words(
        analysis,
        (LOGP, ENTROPY),
        ("tokens of reflection words", "all other tokens"),
        "Before each update, the mean log-prob of the drawn tokens that wrote reflection words and of all others, and "
        f"the mean entropy of the distributions that they were drawn from. {SAME_WORDS}",
    )


def draw_reflection_update(analysis: Analysis) -> Drawing | None:
    """What the update does to the tokens; None if no word occurs or no tokens are recorded."""
    return _draw_words(
        analysis,
        (ADVANTAGE, RATIO, BOUNDED),
        ("tokens of reflection words", "all other tokens"),
        "Mean advantage of the tokens; their mean importance ratio over the optimiser steps on a rollout batch, which "
        f"is 1 at the first of them; and how often the objective's rule clipped or masked them. {SAME_WORDS}",
    )


def _draw_words(
    analysis: Analysis, quantities: Sequence[Quantity], labels: tuple[str, str], what: str
) -> Drawing | None:
    """None if no word occurs or none of these quantities is recorded. labels: of the line of the words, and of the
    other one. what: the beginning of the caption."""
    sweep, axis = analysis.sweep, training_axis(analysis)
    sides = [
        [{} if side is None else word_curves(analysis, side) for side in (quantity.word, quantity.other)]
        for quantity in quantities
    ]
    arms = [arm for arm in sweep.arms if any(arm in words for words, _ in sides)]
    if not arms:
        return None
    styles = arm_styles(sweep.arms, sweep.baseline)
    if is_narrow():
        figure, panels = stacked_panels(len(arms), len(quantities), NARROW_HEADING_IN, labels)
    else:
        figure, panels = PANELS(len(arms), len(quantities)).draw(labels)
    for arm, row in zip(arms, panels, strict=True):
        for panel, (words, others) in zip(row, sides, strict=True):
            for curve, style in ((others.get(arm), OTHERS), (words.get(arm), replace(styles[arm], dash="-"))):
                if curve is not None:
                    draw_seeds_and_band(panel, curve, style)
                    draw_mean(panel, curve, style, "")
            if arm not in words and arm not in others:
                say_not_recorded(panel)
            panel.locator_params(axis="x", nbins=4)
            panel.locator_params(axis="y", nbins=3)
            count_from_zero(panel)
        for panel in row if is_narrow() else row[:1]:
            panel.set_title(arm_label(arm, max(curve.n for curve in _of(arm, sides))), loc="left")
    share_limits([panel for row in panels for panel in row], "x")
    for of_column in zip(*panels, strict=True):
        share_limits(of_column, "y")
    keep_only_grid((panel for row in panels[:-1] for panel in row), "x")
    for panel, quantity in zip(panels[0], quantities, strict=True):
        write_above(panel, quantity.heading, HEADING_OFFSET_POINTS)
    for panel in panels[-1]:
        panel.set_xlabel(axis.label)
    legend_at_bottom(figure, _legend(labels))
    curves = [curve for arm in arms for curve in _of(arm, sides)]
    return Drawing(figure, f"{what} {describe_curves(curves, sweep.alpha)}", _rows(arms, quantities, sides, axis.field))


def _of(arm: str, sides: Sequence[Sequence[Mapping[str, Curve]]]) -> list[Curve]:
    return [curves[arm] for both in sides for curves in both if arm in curves]


def _legend(labels: tuple[str, str]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=style.color, linestyle=style.dash, marker=style.marker, linewidth=1.8, label=label)
        for style, label in zip((ArmStyle(INK, "", "-"), OTHERS), labels, strict=True)
    ]


def _rows(
    arms: Sequence[str],
    quantities: Sequence[Quantity],
    sides: Sequence[Sequence[Mapping[str, Curve]]],
    x_name: str,
) -> list[DataRow]:
    """A row for each of these arms, seed and point, with the quantities side by side."""
    merged: dict[tuple[int, int, float], DataRow] = {}
    for quantity, both in zip(quantities, sides, strict=True):
        for prefix, by_arm in zip(("", "other_"), both, strict=True):
            shown = [curve for arm, curve in by_arm.items() if arm in arms]
            for row in curve_rows(shown, x_name, f"{prefix}{quantity.name}"):
                key = (arms.index(str(row["arm"])), int(row["seed"]), float(row[x_name]))
                merged.setdefault(key, {}).update(row)
    return [merged[key] for key in sorted(merged)]


REFLECTION_WORDS = Figure(
    name="reflection_words", title="Reflection words in training", draw=draw_reflection_words, group="Policy", order=200
)
REFLECTION_POLICY = Figure(
    name="reflection_policy",
    title="Reflection tokens: log-prob and entropy",
    draw=draw_reflection_policy,
    group="Policy",
    order=210,
)
REFLECTION_UPDATE = Figure(
    name="reflection_update",
    title="Reflection tokens: advantage, ratio and clipping",
    draw=draw_reflection_update,
    group="Policy",
    order=220,
)
