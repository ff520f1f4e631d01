"""Accuracy against tokens: what an arm's score costs in training, and what an answer costs in use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.drawing.curves import arm_label, describe_seeds
from reports.drawing.marks import mark
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import (
    GREY,
    LEGEND_ROW_IN,
    ArmStyle,
    arm_styles,
    bounded_view,
    is_narrow,
    legend_columns,
    new_figure,
)
from reports.figures import Figure
from reports.formats import percent, tokens
from reports.measure import Analysis
from reports.measure.contrasts import EQUAL_TOKENS_TOLERANCE
from reports.measure.measurements import Measurement
from reports.statistics import MIN_PAIRS, t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


TRAINING, ANSWER = "generated_tokens", "mean_tokens"
X_LABELS = {TRAINING: "tokens generated in training", ANSWER: said("reports.mean_tokens_answer")}


@dataclass(frozen=True)
class Spot:
    """The means over an arm's seeds, with the t interval of the score; NaN for fewer than three seeds."""

    x: float
    y: float
    low: float
    high: float


def draw_pareto(analysis: Analysis) -> Drawing | None:
    """Draw scores against the tokens of training and of an answer; None if there is no final score.

    The tokens of training are left out if all arms generated about the same number.
    """
    sweep, metric = analysis.sweep, analysis.metric
    rows = [row for arm, cells in analysis.measurements.items() for row in _rows(arm, cells)]
    arms = [arm for arm in sweep.arms if any(row["arm"] == arm for row in rows)]
    spots = {
        key: {arm: spot for arm in arms if (spot := _spot(rows, arm, key, sweep.alpha)) is not None} for key in X_LABELS
    }
    if _alike([spot.x for spot in spots[TRAINING].values()]):
        del spots[TRAINING]
    spots = {key: by_arm for key, by_arm in spots.items() if by_arm}
    if not spots:
        return None
    counts = {arm: sum(row["arm"] == arm for row in rows) for arm in arms}
    labels = {arm: arm_label(arm, counts[arm]) for arm in arms}
    legend = legend_columns([*labels.values()])
    # The legend has one more entry than arms: the frontier.
    height_in = 3.1 + LEGEND_ROW_IN * math.ceil((len(arms) + 1) / legend)
    stacked = len(spots) if is_narrow() else 1
    figure = new_figure(height_in + 2.4 * (stacked - 1))
    panels = figure.subplots(stacked, len(spots) // stacked, sharey=True, squeeze=False).ravel()
    styles = arm_styles(sweep.arms, sweep.baseline)
    handles: dict[str, Line2D] = {}
    for axes, (key, by_arm) in zip(panels, spots.items(), strict=True):
        for arm, spot in by_arm.items():
            mine = [(row[key], row["score_pp"]) for row in rows if row["arm"] == arm and key in row]
            handles[arm] = _draw_arm(axes, mine, spot, styles[arm], labels[arm])
            mark(handles[arm], arm, "mean")
        _draw_frontier(axes, [*by_arm.values()], handles)
        axes.set_xlabel(X_LABELS[key])
        axes.locator_params(axis="x", nbins=6)
        if key == TRAINING:
            axes.xaxis.set_major_formatter(lambda value, _position: tokens(value))
        else:  # Answers may differ by less than three digits can show.
            axes.ticklabel_format(axis="x", useOffset=False)
        axes.margins(x=0.08)
    low, high = bounded_view(
        [float(row["score_pp"]) for row in rows],
        [end for by_arm in spots.values() for spot in by_arm.values() for end in (spot.low, spot.high)],
    )
    panels[0].set_ylim(low - 0.05 * (high - low) - 0.2, high + 0.05 * (high - low) + 0.2)
    for axes in panels[:stacked]:
        axes.set_ylabel(f"final {metric.name} of {metric.task} (%)")
    figure.legend(handles=[*handles.values()], loc="outside lower center", ncols=legend)
    against = " and against ".join(X_LABELS[key] for key in spots)
    equally = said("reports.all_arms_generated_equally", tolerance=percent(EQUAL_TOKENS_TOLERANCE))
    caption = said(
        "reports.final_on_against_grey",
        name=metric.name,
        task=metric.task,
        against=against,
        equally=equally if TRAINING not in spots and analysis.trains else "",
        describe_seeds=describe_seeds([*counts.values()], sweep.alpha, "bar"),
    )
    return Drawing(figure, caption, rows)


def _alike(tokens_by_arm: Sequence[float]) -> bool:
    """Return whether all arms generated about the same number of tokens, within the tolerance of equal budgets."""
    return max(tokens_by_arm, default=0) <= (1 + EQUAL_TOKENS_TOLERANCE) * min(tokens_by_arm, default=0)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (cost, score) that no other point beats, in order of cost.

    A point is beaten if another is as cheap and better, or cheaper and at least as good.
    """
    best: list[tuple[float, float]] = []
    # Among equally cheap points the best comes first, and a later point must be strictly better.
    for cost, score in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((cost, score))
    return best


def _rows(arm: str, cells: Sequence[Measurement]) -> list[DataRow]:
    """Return a row for each cell with a score. Token counts that were not recorded are left out."""
    rows: list[DataRow] = []
    for m in cells:
        if m.score_pp is None:
            continue
        row: DataRow = {"arm": arm, "seed": m.cell.seed, "score_pp": m.score_pp}
        spent = {TRAINING: m.cell.generated_tokens, ANSWER: m.final_value(ANSWER)}
        rows.append(row | {name: tokens for name, tokens in spent.items() if tokens is not None})
    return rows


def _spot(rows: Sequence[DataRow], arm: str, key: str, alpha: float) -> Spot | None:
    """Return an arm's mean over the seeds that recorded this token count; None if no seed did."""
    points = np.array([(row[key], row["score_pp"]) for row in rows if row["arm"] == arm and key in row], dtype=float)
    if not len(points):
        return None
    low, high = t_interval(points[:, 1], alpha) if len(points) >= MIN_PAIRS else (math.nan, math.nan)
    return Spot(float(points[:, 0].mean()), float(points[:, 1].mean()), low, high)


def _draw_arm(axes: Axes, seeds: Sequence[tuple[object, object]], spot: Spot, style: ArmStyle, label: str) -> Line2D:
    axes.plot([spot.x, spot.x], [spot.low, spot.high], color=style.color, linewidth=1.6)
    if len(seeds) > 1:
        axes.plot(*zip(*seeds, strict=True), "o", color=style.color, markersize=3.5, alpha=0.4, markeredgewidth=0)
    (handle,) = axes.plot(spot.x, spot.y, style.marker, color=style.color, markersize=8, label=label)
    return handle


def _draw_frontier(axes: Axes, spots: Sequence[Spot], handles: dict[str, Line2D]) -> None:
    """Draw the frontier if several arms are on it."""
    best = frontier([(spot.x, spot.y) for spot in spots])
    if len(best) > 1:
        (handles["frontier"],) = axes.plot(
            *zip(*best, strict=True), color=GREY, linewidth=1.2, drawstyle="steps-post", zorder=0, label="frontier"
        )


PARETO = Figure(name="pareto", title="Accuracy against tokens", draw=draw_pareto, group="Cost", order=150)
