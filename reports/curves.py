"""Curves over training: a line per seed, their mean and t band on a common grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reports.measurements import Measurement
from reports.statistics import MIN_PAIRS, FloatArray, t_band

Points = Sequence[tuple[float, float | None]] | FloatArray
"""(x, y); as an array [n, 2]. None or NaN: unknown."""


@dataclass(frozen=True)
class Axis:
    """What curves of training run over: a field of the records, its label, and what a caption must say about it."""

    field: str
    label: str
    note: str = ""


TOKENS = Axis("generated_tokens", "generated tokens")
STEPS = Axis("step", "training step", "Over steps, as training on fixed data generates no tokens.")


def training_axis(measurements: dict[str, list[Measurement]]) -> Axis:
    """Generated tokens; steps for the whole sweep if a cell trained without generating any, as it would have one x."""
    generated = [m.steps["generated_tokens"][-1] for cells in measurements.values() for m in cells if m.steps.length]
    return TOKENS if all(generated) else STEPS


@dataclass(frozen=True)
class Line:
    """One seed: `x` [points] strictly increasing, `y` [points]."""

    seed: int
    x: FloatArray
    y: FloatArray


@dataclass(frozen=True)
class Curve:
    """One arm: its seeds, and mean, low and high [grid] on `grid`, strictly increasing.

    The grid lies in the range in which every seed has data, but for the end of an `evaluation_mean`. low and high are
    the pointwise t(n-1) band over seeds, NaN below the three seeds that any inference takes.
    """

    arm: str
    lines: list[Line]
    grid: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def n(self) -> int:
        return len(self.lines)

    @property
    def ends_past_a_seed(self) -> bool:
        """Whether the mean goes on where a seed has no more data."""
        return len(self.grid) > 0 and bool(self.grid[-1] > min(line.x[-1] for line in self.lines))

    def scaled(self, factor: float) -> Curve:
        """The same in another unit; factor above 0."""
        lines = [Line(line.seed, line.x, factor * line.y) for line in self.lines]
        return Curve(self.arm, lines, self.grid, factor * self.mean, factor * self.low, factor * self.high)


def step_curves(measurements: dict[str, list[Measurement]], key: str, axis: Axis, alpha: float) -> list[Curve]:
    """Curves of one field of steps.jsonl, for the arms that recorded it."""
    return _curves(measurements, lambda m: np.column_stack([m.steps[axis.field], m.steps[key]]), mean_curve, alpha)


def evaluation_curves(
    measurements: dict[str, list[Measurement]], name: str, axis: Axis, alpha: float, start: float | None = None
) -> list[Curve]:
    """Curves of one metric of the periodic and the final evaluation, from `start` before training.

    Cells whose final evaluation lacks the metric are left out, as they are of every comparison; so a line ends in the
    score that is compared.
    """

    def points(m: Measurement) -> Points:
        if m.final_value(name) is None:
            return []
        return [(0, start), *((row[axis.field], row["metrics"].get(name)) for row in m.evaluations)]

    return _curves(measurements, points, evaluation_mean, alpha)


def curves_over_k(measurements: dict[str, list[Measurement]], family: str, alpha: float) -> list[Curve]:
    """Curves of a final metric over k; family: `pass` or `maj`, for pass@k or maj@k."""

    def points(m: Measurement) -> Points:
        return points_over_k({} if m.final is None else m.final["metrics"], family)

    return _curves(measurements, points, mean_curve, alpha)


def points_over_k(metrics: Mapping[str, float | None], family: str) -> list[tuple[float, float | None]]:
    """(k, value) of every `<family>@k` among the metrics, by k."""
    named = {name: name.removeprefix(f"{family}@") for name in metrics if name.startswith(f"{family}@")}
    return sorted(((int(k), metrics[name]) for name, k in named.items() if k.isdecimal()), key=lambda point: point[0])


def base_line_over_k(metrics: Mapping[str, float | None], family: str) -> Line | None:
    """The same of the model before training; None where it was not measured."""
    line = to_line(0, points_over_k(metrics, family))
    return line if len(line.x) else None


def paired_curves(curves: Sequence[Curve], baseline: str, alpha: float) -> list[Curve]:
    """Each arm's evaluations minus the baseline's, seed by seed; band at level 1 - alpha.

    At the arm's own x, as far as both reach, with the baseline interpolated linearly; then the difference of the final
    values, at the mean of the two last x. Arms without a pair that shares a range are left out.
    """
    partners = next(({line.seed: line for line in c.lines} for c in curves if c.arm == baseline), {})
    paired = []
    for curve in curves:
        lines = [_difference(line, partners[line.seed]) for line in curve.lines if line.seed in partners]
        if curve.arm != baseline and any(len(line.x) > 1 for line in lines):
            paired.append(evaluation_mean(curve.arm, lines, alpha))
    return paired


def _difference(line: Line, partner: Line) -> Line:
    before_last = line.x[:-1]
    x = before_last[(before_last >= partner.x[0]) & (before_last <= partner.x[-1])]
    on_the_way = np.interp(x, line.x, line.y) - np.interp(x, partner.x, partner.y)
    end = (line.x[-1] + partner.x[-1]) / 2
    return Line(line.seed, np.append(x, end), np.append(on_the_way, line.y[-1] - partner.y[-1]))


def to_line(seed: int, points: Points) -> Line:
    """A line through the finite points; of several at one x the last counts."""
    x, y = np.asarray(points, dtype=np.float64).reshape(-1, 2).T  # None becomes NaN
    x, y = x[np.isfinite(y)][::-1], y[np.isfinite(y)][::-1]
    x, last = np.unique(x, return_index=True)
    return Line(seed, x, y[last])


def mean_curve(arm: str, lines: Sequence[Line], alpha: float) -> Curve:
    """Average the seeds on an even grid, each interpolated linearly; the grid has the fewest points of any seed.

    Seeds that share their x keep it. Without a range that all seeds cover the grid is empty.
    """
    grid = _shared_grid(lines)
    return _average(arm, lines, grid, np.array([np.interp(grid, line.x, line.y) for line in lines]), alpha)


def evaluation_mean(arm: str, lines: Sequence[Line], alpha: float) -> Curve:
    """As `mean_curve`, but its last point is the mean of the seeds' last values, at the mean of their last x.

    What is compared are the final scores, wherever the seeds end: interpolated to an x that all reach, the curve would
    end in another mean and band than the comparison.
    """
    grid = _shared_grid(lines)
    end = float(np.mean([line.x[-1] for line in lines]))
    # The last point that all reach, unless it is so near the end that it would say the same twice.
    half_spacing = np.diff(grid[-2:]).sum() / 2
    grid = grid[grid < end - half_spacing]
    values = np.array([[*np.interp(grid, line.x, line.y), line.y[-1]] for line in lines])
    return _average(arm, lines, np.append(grid, end), values, alpha)


def _shared_grid(lines: Sequence[Line]) -> FloatArray:
    first, last = max(line.x[0] for line in lines), min(line.x[-1] for line in lines)
    if all(np.array_equal(line.x, lines[0].x) for line in lines):
        return lines[0].x
    points = min(len(line.x) for line in lines) if last > first else int(last == first)
    return np.linspace(first, last, points)


def _average(arm: str, lines: Sequence[Line], grid: FloatArray, values: FloatArray, alpha: float) -> Curve:
    """values: of each seed on the grid [n, grid]."""
    nothing = np.full(len(grid), math.nan)
    low, high = t_band(values, alpha) if len(lines) >= MIN_PAIRS else (nothing, nothing)
    return Curve(arm, list(lines), grid, values.mean(axis=0), low, high)


def _curves(
    measurements: dict[str, list[Measurement]],
    points: Callable[[Measurement], Points],
    average: Callable[[str, Sequence[Line], float], Curve],
    alpha: float,
) -> list[Curve]:
    curves = []
    for arm, cells in measurements.items():
        lines = [line for m in cells if len((line := to_line(m.cell.seed, points(m))).x)]
        if lines:
            curves.append(average(arm, lines, alpha))
    return curves
