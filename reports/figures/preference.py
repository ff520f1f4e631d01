"""What preference training does to the two sides of its pairs: a row of panels for each arm that trains on pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reports.analysis import Analysis
from reports.curves import Curve, step_curves
from reports.figures.lines import (
    arm_label,
    count_from_zero,
    curve_rows,
    describe_curves,
    draw_mean,
    draw_seeds_and_band,
    legend_below,
)
from reports.figures.style import GREY, INK, WIDTH_IN, ArmStyle, Drawing, arm_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

NAME = "preference"
TITLE = "Chosen and rejected answers in training"

CHOSEN, REJECTED, MARGIN, ACCURACY = "logps/chosen_mean", "logps/rejected_mean", "rewards/margin", "rewards/accuracy"
HEADINGS = ("log-prob (nats per token)", "margin of rewards", "accuracy of rewards")
# Points from the top of a panel to its column's heading, above the title with the arm's name.
HEADING_OFFSET_POINTS = 21


def draw(analysis: Analysis) -> Drawing | None:
    """None when no cell trained on pairs."""
    from matplotlib.figure import Figure

    sweep, axis = analysis.sweep, analysis.axis
    by_key = {
        key: {curve.arm: curve for curve in step_curves(analysis.measurements, key, axis, sweep.alpha)}
        for key in (CHOSEN, REJECTED, MARGIN, ACCURACY)
    }
    arms = list(by_key[CHOSEN])
    if not arms:
        return None
    styles = arm_styles(sweep.arms, sweep.baseline)
    figure = Figure(figsize=(WIDTH_IN, 1.1 + 1.45 * len(arms)), layout="constrained")
    panels = figure.subplots(len(arms), len(HEADINGS), sharex=True, squeeze=False)
    for arm, row in zip(arms, panels, strict=True):
        logps, margin, accuracy = row
        logps.sharey(panels[0, 0])
        accuracy.sharey(panels[0, 2])
        style = replace(styles[arm], dash="-")  # the dash tells the sides apart, the row the arms
        _draw(logps, by_key[CHOSEN].get(arm), style)
        _draw(logps, by_key[REJECTED].get(arm), _rejected(style))
        _draw(margin, by_key[MARGIN].get(arm), style)
        _draw(accuracy, by_key[ACCURACY].get(arm), style)
        margin.axhline(0, color=GREY, linewidth=0.9, zorder=0)
        accuracy.axhline(0.5, color=GREY, linewidth=0.9, zorder=0)
        logps.set_title(arm_label(arm, by_key[CHOSEN][arm].n), loc="left")
        for panel in row:
            panel.locator_params(axis="x", nbins=4)
            count_from_zero(panel)
    for panel, heading in zip(panels[0], HEADINGS, strict=True):
        panel.annotate(
            heading, (0, 1), (0, HEADING_OFFSET_POINTS), xycoords="axes fraction", textcoords="offset points"
        )
    for panel in panels[-1]:
        panel.set_xlabel(axis.label)
    panels[0, 2].set_ylim(-0.03, 1.03)
    legend_below(figure, _legend())
    curves = [curve for by_arm in by_key.values() for curve in by_arm.values()]
    caption = (
        "Mean log-prob of a token of the chosen and of the rejected answers under the policy: the usual failure is that"
        " both fall while the margin grows. Rewards are those of the arm's objective: the margin, chosen minus"
        " rejected, is on its scale and so has an axis for each arm; accuracy is the share of pairs with a margin above"
        " 0, those without one counting half. Grey lines: no margin, guessing."
        f" {describe_curves(curves, sweep.alpha)} {axis.note}"
    )
    return Drawing(figure, caption.rstrip(), _rows(by_key, axis.field))


def _draw(axes: Axes, curve: Curve | None, style: ArmStyle) -> None:
    if curve is not None:
        draw_seeds_and_band(axes, curve, style)
        draw_mean(axes, curve, style, "")


def _rejected(style: ArmStyle) -> ArmStyle:
    return replace(style, marker="x", dash=":")


def _legend() -> list[Line2D]:
    from matplotlib.lines import Line2D

    solid = ArmStyle(INK, "", "-")
    return [
        Line2D([], [], color=style.color, linestyle=style.dash, marker=style.marker, linewidth=1.8, label=label)
        for style, label in ((solid, "chosen"), (_rejected(solid), "rejected"))
    ]


def _rows(by_key: dict[str, dict[str, Curve]], x_name: str) -> list[dict[str, str | int | float]]:
    """A row per arm, seed and step, with the four fields side by side."""
    merged: dict[tuple[str | int | float, ...], dict[str, str | int | float]] = {}
    for key, by_arm in by_key.items():
        for row in curve_rows(list(by_arm.values()), x_name, key):
            merged.setdefault((row["arm"], row["seed"], row[x_name]), {}).update(row)
    return list(merged.values())
