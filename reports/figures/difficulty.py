"""The problems that each arm learns from: share of the gradient, advantages and lengths by the prompt's pass rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.drawing.grid import Column, Trace, describe_grid, draw_grid, grid_rows
from reports.drawing.rendering import DataRow, Drawing
from reports.figures import Figure
from reports.measure import Analysis
from reports.measure.curves import Curve, Line
from reports.measure.difficulty import BIN_LABELS, MOST_CELLS, MOST_FILES, Difficulty, difficulties
from reports.statistics import MIN_PAIRS, FloatArray, t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLUMNS = (
    Column("share of the gradient", Trace("share"), as_percent=True),
    Column("mean |A| of a token", Trace("advantage")),
    Column("tokens per completion", Trace("tokens")),
)


def draw_difficulty(analysis: Analysis) -> Drawing | None:
    """Draw a column for each quantity, with the pass rate of prompts as x; None if no cell kept rollouts."""
    sweep = analysis.sweep
    found = difficulties(analysis)
    by_field = {
        trace.field: {
            arm: curve
            for arm, by_seed in found.items()
            if (curve := _curve(arm, [*by_seed.values()], trace.field, sweep.alpha)) is not None
        }
        for column in COLUMNS
        for trace in column.traces
    }
    figure = draw_grid(analysis, COLUMNS, by_field, said("reports.pass_rate_prompt"), _bins)
    if figure is None:
        return None
    caption = said(
        "reports.prompts_grouped_their_pass",
        most_files=MOST_FILES,
        of_some_cells=_of_some_cells(analysis),
        describe_grid=describe_grid(analysis, by_field),
    )
    return Drawing(figure, caption, _named_bins(grid_rows(by_field, "bin")))


def _of_some_cells(analysis: Analysis) -> str:
    n_cells = sum(map(len, analysis.measurements.values()))
    return f", in {MOST_CELLS} of {n_cells:,} cells" if n_cells > MOST_CELLS else ""


def _curve(arm: str, by_seed: Sequence[Difficulty], field: str, alpha: float) -> Curve | None:
    """Return the mean and band of each bin, over the seeds that have prompts in it; None if all bins are empty."""
    values = np.array([getattr(one, field) for one in by_seed], dtype=np.float64)
    filled = [i for i in range(values.shape[1]) if not np.isnan(values[:, i]).all()]
    if not filled:
        return None
    known = [values[~np.isnan(values[:, i]), i] for i in filled]
    intervals = [t_interval(v, alpha) if len(v) >= MIN_PAIRS else (math.nan, math.nan) for v in known]
    low, high = np.array(intervals, dtype=np.float64).T
    lines = [_line(one.seed, row) for one, row in zip(by_seed, values, strict=True)]
    return Curve(arm, lines, np.array(filled, dtype=np.float64), np.array([v.mean() for v in known]), low, high)


def _line(seed: int, values: FloatArray) -> Line:
    inside = np.flatnonzero(~np.isnan(values))
    return Line(seed, inside.astype(np.float64), values[inside])


def _bins(axes: Axes) -> None:
    """Set up an x axis of bins, which are numbered from 0."""
    axes.set_xticks(range(len(BIN_LABELS)), labels=BIN_LABELS)
    axes.set_xlim(-0.3, len(BIN_LABELS) - 0.7)


def _named_bins(rows: Sequence[DataRow]) -> list[DataRow]:
    return [row | {"bin": BIN_LABELS[int(row["bin"])]} for row in rows]


DIFFICULTY = Figure(
    name="difficulty", title=said("reports.which_problems_each_arm"), draw=draw_difficulty, group="Learning", order=160
)
