"""A factorial's arms by two knobs at a time: lines, which are parallel if effects add up, and a map of the means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.drawing.panels import Panels
from reports.drawing.rendering import DataRow, Drawing
from reports.drawing.style import ARM_COLORS, DASHES, MARKERS, SEED_ALPHA, width_in
from reports.figures import Figure
from reports.formats import count
from reports.measure import Analysis
from reports.measure.interactions import complete_seeds, factorial_of
from reports.statistics import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEGEND_IN = 1.5
SCORES_IN = 0.6
"""The space left of the lines, for the tick labels of the scores and the axis label."""
CHARACTER_IN = 0.07
COLORS = "cividis"
LIGHT, DARK = "#ffffff", "#101010"
"""The text colours on the dark and the light half of the map. Dark mode changes neither them nor the map."""


@dataclass(frozen=True)
class Crossing:
    """The scores for each combination of two knobs, averaged over the values of all other knobs."""

    knobs: tuple[str, str]
    levels: tuple[list[object], list[object]]
    seeds: list[int]
    scores_pp: FloatArray
    """[seeds, values of the first knob, values of the second]."""

    @property
    def names(self) -> tuple[str, str]:
        first, second = (knob.rpartition(".")[2] for knob in self.knobs)
        return first, second

    def rows(self) -> Iterator[DataRow]:
        """Yield a data row for each seed and each combination of values."""
        for seed, table in zip(self.seeds, self.scores_pp, strict=True):
            for value, row in zip(self.levels[0], table, strict=True):
                for other, score in zip(self.levels[1], row, strict=True):
                    yield {
                        **{"first": self.knobs[0], "first_value": str(value)},
                        **{"second": self.knobs[1], "second_value": str(other)},
                        **{"seed": seed, "score_pp": float(score)},
                    }


def crossings(analysis: Analysis) -> list[Crossing]:
    """Return every pair of knobs of a factorial, over the seeds with a score in every arm; [] if there is none."""
    factorial, complete = factorial_of(analysis.sweep), complete_seeds(analysis.sweep, analysis.measurements)
    if factorial is None or not factorial.effects or not complete:
        return []
    scores = np.array(
        [factorial.table({arm: m.score_pp or 0.0 for arm, m in runs.items()}) for runs in complete.values()]
    )
    axes = range(len(factorial.levels))
    knobs = [*factorial.levels]
    return [
        Crossing(
            (knobs[one], knobs[other]),
            (factorial.levels[knobs[one]], factorial.levels[knobs[other]]),
            [*complete],
            # Axis 0 is the seeds, so the knobs' axes start at 1.
            scores.mean(axis=tuple(1 + axis for axis in axes if axis not in (one, other))),
        )
        for one, other in combinations(axes, 2)
    ]


def draw_interactions(analysis: Analysis) -> Drawing | None:
    """Draw the scores of every pair of knobs as lines.

    None if the sweep is not a complete factorial, or if no seed has a score in every arm.
    """
    shown = crossings(analysis)
    if not shown:
        return None
    figure, panels = Panels(
        len(shown), 1, height=2.1, column_gap=0.0, row_gap=0.75, left=SCORES_IN, top=0.2, right=LEGEND_IN
    ).draw()
    for crossing, (axes,) in zip(shown, panels, strict=True):
        _draw_lines(axes, crossing, analysis.metric.name)
    return Drawing(
        figure,
        said("reports.final_score_two_knobs", n_seeds=count(len(shown[0].seeds), "seed"), averaged=_averaged(shown)),
        [row for crossing in shown for row in crossing.rows()],
    )


def _draw_lines(axes: Axes, crossing: Crossing, metric: str) -> None:
    """Draw the first knob along x, with a line for each value of the second."""
    (first, second), (values, others) = crossing.names, crossing.levels
    places = range(len(values))
    # A seed's own mean cancels in every effect. Subtracting it makes the thin lines show the spread of effects.
    own_means = crossing.scores_pp.mean(axis=(1, 2), keepdims=True)
    moved = crossing.scores_pp - own_means + own_means.mean()
    for i, other in enumerate(others):
        color, dash = ARM_COLORS[i % len(ARM_COLORS)], DASHES[i % len(DASHES)]
        axes.plot(places, moved[:, :, i].T, color=color, alpha=SEED_ALPHA, linewidth=0.7)
        axes.plot(
            places,
            moved[:, :, i].mean(axis=0),
            color=color,
            linewidth=2.2,
            linestyle=dash,
            marker=MARKERS[i % len(MARKERS)],
            markersize=6,
            label=f"{second} {other}",
        )
    axes.set_xticks([*places], [str(value) for value in values])
    axes.set_xlim(-0.25, len(values) - 0.75)
    axes.set_xlabel(first)
    axes.set_ylabel(f"{metric} (%)")
    axes.yaxis.set_label_coords(-0.75 * SCORES_IN / (width_in() - SCORES_IN - LEGEND_IN), 0.5)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=3.0)


def draw_means(analysis: Analysis) -> Drawing | None:
    """Draw the mean score of every combination as a map.

    None if the sweep is not a complete factorial, or if no seed has a score in every arm.
    """
    shown = crossings(analysis)
    if not shown:
        return None
    tallest = max(len(crossing.levels[0]) for crossing in shown)
    longest = max(len(label) for crossing in shown for label in _labels(crossing, 0))
    figure, panels = Panels(
        len(shown), 1, height=0.42 * tallest, column_gap=0.0, row_gap=0.75, left=0.2 + CHARACTER_IN * longest, top=0.2
    ).draw()
    means = [crossing.scores_pp.mean(axis=0) for crossing in shown]
    ends = min(mean.min() for mean in means), max(mean.max() for mean in means)
    for crossing, mean, (axes,) in zip(shown, means, panels, strict=True):
        _draw_map(axes, crossing, mean, ends)
    return Drawing(
        figure,
        said(
            "reports.mean_final_over_score",
            name=analysis.metric.name,
            n_seeds=count(len(shown[0].seeds), "seed"),
            averaged=_averaged(shown),
        ),
        [row for crossing in shown for row in crossing.rows()],
    )


def _draw_map(axes: Axes, crossing: Crossing, mean: FloatArray, ends: tuple[float, float]) -> None:
    # The small addition keeps the colour range from being empty if all means are equal.
    axes.pcolormesh(mean, cmap=COLORS, vmin=ends[0], vmax=ends[1] + 1e-9)
    for (row, column), value in np.ndenumerate(mean):
        ink = LIGHT if value < (ends[0] + ends[1]) / 2 else DARK
        axes.text(column + 0.5, row + 0.5, f"{value:.1f}", ha="center", va="center", color=ink)
    for which, axis in enumerate((axes.yaxis, axes.xaxis)):
        labels = _labels(crossing, which)
        axis.set_ticks([place + 0.5 for place in range(len(labels))], labels)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _labels(crossing: Crossing, which: int) -> list[str]:
    return [f"{crossing.names[which]} {value}" for value in crossing.levels[which]]


def _averaged(shown: Sequence[Crossing]) -> str:
    return said("reports.averaged_over_values_other") if len(shown) > 1 else ""


INTERACTIONS = Figure(
    name="interactions", title=said("reports.do_knobs_effects_add"), draw=draw_interactions, group="Result", order=4
)
CELL_MEANS = Figure(
    name="cell_means", title=said("reports.mean_score_every_combination"), draw=draw_means, group="Result", order=6
)
