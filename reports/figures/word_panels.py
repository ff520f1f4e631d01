"""Panels of reflection words against all else over training: a row for each arm, a column for each quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reports.analysis import Analysis
from reports.curves import Curve
from reports.figures.lines import (
    arm_label,
    count_from_zero,
    curve_rows,
    describe_curves,
    draw_mean,
    draw_seeds_and_band,
)
from reports.figures.panels import Panels, keep_only_grid, legend_at_bottom, share_limits
from reports.figures.style import GREY, INK, ArmStyle, Drawing, arm_styles, say_not_recorded
from reports.reflection import Quantity, stretches_of, word_curves
from reports.reflection.summary import MOST_FILES

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

# Points from the top of a panel to its column's heading, above the title with the arm's name.
HEADING_OFFSET_POINTS = 21
PANELS = partial(Panels, height=1.05, column_gap=0.62, row_gap=0.34, left=0.55, top=0.58)
OTHERS = ArmStyle(GREY, "x", ":")


def draw_words(
    analysis: Analysis, quantities: Sequence[Quantity], labels: tuple[str, str], what: str
) -> Drawing | None:
    """None where no word occurs, or nothing of these quantities is recorded. labels: of the words' line, and of the
    other one. what: the beginning of the caption."""
    sweep, axis, reflection = analysis.sweep, analysis.axis, analysis.reflection
    stretches = stretches_of(reflection, analysis.measurements, axis)
    sides = [
        [{} if side is None else word_curves(stretches, side, sweep.alpha) for side in (quantity.word, quantity.other)]
        for quantity in quantities
    ]
    arms = [arm for arm in sweep.arms if any(arm in words for words, _ in sides)]
    if not arms:
        return None
    styles = arm_styles(sweep.arms, sweep.baseline)
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
        row[0].set_title(arm_label(arm, max(curve.n for curve in _of(arm, sides))), loc="left")
    share_limits([panel for row in panels for panel in row], "x")
    for of_column in zip(*panels, strict=True):
        share_limits(of_column, "y")
    keep_only_grid((panel for row in panels[:-1] for panel in row), "x")
    for panel, quantity in zip(panels[0], quantities, strict=True):
        panel.annotate(
            quantity.heading, (0, 1), (0, HEADING_OFFSET_POINTS), xycoords="axes fraction", textcoords="offset points"
        )
    for panel in panels[-1]:
        panel.set_xlabel(axis.label)
    legend_at_bottom(figure, _legend(labels))
    curves = [curve for arm in arms for curve in _of(arm, sides)]
    caption = (
        f"{what} Words looked for: {', '.join(reflection.words)}. The first point, at 0, is the first step's rollout,"
        " by the model before any update; each later one a stretch of steps, at what was generated before them. A"
        f" stretch without the words has no point; of more than {MOST_FILES} files of completions so many are read,"
        f" spread over each run, and the steps of the others have none."
        f" {describe_curves(curves, sweep.alpha)} {axis.note}"
    )
    return Drawing(figure, caption.rstrip(), _rows(arms, quantities, sides, axis.field))


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
) -> list[dict[str, str | int | float]]:
    """A row per arm, seed and point, with all quantities side by side."""
    merged: dict[tuple[int, int, float], dict[str, str | int | float]] = {}
    for quantity, both in zip(quantities, sides, strict=True):
        for prefix, by_arm in zip(("", "other_"), both, strict=True):
            for row in curve_rows(list(by_arm.values()), x_name, f"{prefix}{quantity.name}"):
                key = (arms.index(str(row["arm"])), int(row["seed"]), float(row[x_name]))
                merged.setdefault(key, {}).update(row)
    return [merged[key] for key in sorted(merged)]
