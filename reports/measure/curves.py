"""Curves over training or over k: one line per seed, and their mean with its t band on a common grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.records.rows import ScoreRow
from reports.measure import Analysis, derived
from reports.measure.measurements import Columns, Measurement
from reports.statistics import MIN_PAIRS, FloatArray, t_band

Points = Sequence[tuple[float, float | None]] | FloatArray
"""Pairs (x, y), or an array [n, 2]. An unknown y is None or NaN."""


@dataclass(frozen=True)
class Axis:
    """The x axis of curves: its column in the data, its label, and the unit in which two arms are matched."""

    field: str
    label: str
    unit: str

    def of_steps(self, m: Measurement) -> FloatArray:
        """Return x at each step of a cell [steps]."""
        if self != SECONDS:
            return m.steps[self.field]
        if not m.steps.length:
            return np.empty(0)
        taken = ~np.isnan(m.timing["total_s"])  # Rows of evaluations have no total_s.
        return np.interp(m.steps["step"], m.timing["step"][taken], np.cumsum(m.timing["total_s"][taken]))

    def of_evaluation(self, m: Measurement, row: ScoreRow) -> float:
        """Return the x at which a cell was evaluated."""
        if self != SECONDS:
            return float(row["step"] if self == STEPS else row["generated_tokens"] or 0)
        return float(np.interp(row["step"], m.steps["step"], self.of_steps(m))) if m.steps.length else math.nan


TOKENS = Axis("generated_tokens", "generated tokens", "tokens")
STEPS = Axis("step", "training step", "steps")
SECONDS = Axis("training_s", "seconds of training", "seconds")


@derived
def training_axes(analysis: Analysis) -> list[Axis]:
    """Return the axes over which training can be shown.

    Generated tokens come first. They are left out if any cell's number is unknown, or if a cell trained without
    generating any: all its points would have the same x. Seconds are left out if any cell did not record them.
    """
    cells = [m for some in analysis.measurements.values() for m in some if m.steps.length]
    known = all(m.cell.generated_tokens is not None for some in analysis.measurements.values() for m in some)
    axes = [TOKENS] if known and all(m.steps["generated_tokens"][-1] for m in cells) else []
    timed = all("total_s" in m.timing.fields and len(m.timing.known("total_s")) for m in cells)
    return [*axes, STEPS, *([SECONDS] if timed else [])]


def training_axis(analysis: Analysis) -> Axis:
    """Return the requested axis of the curves, or else the first of `training_axes`."""
    return next((axis for axis in training_axes(analysis) if axis.field == analysis.over), training_axes(analysis)[0])


@dataclass(frozen=True)
class Line:
    """One seed: x [points], strictly increasing, and y [points]."""

    seed: int
    x: FloatArray
    y: FloatArray


@dataclass(frozen=True)
class Curve:
    """One arm: a line for each seed, and the mean of the lines with the ends of its band, all [grid].

    The grid increases strictly. It spans the x range that every seed covers; only the last point of an
    `evaluation_mean` may lie outside. The band is the pointwise t(n-1) interval over seeds; NaN for fewer than 3.
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

    def scaled(self, factor: float) -> Curve:
        """Return the curve with all y values multiplied by `factor`, which must be positive."""
        lines = [Line(line.seed, line.x, factor * line.y) for line in self.lines]
        return Curve(self.arm, lines, self.grid, factor * self.mean, factor * self.low, factor * self.high)


def step_curves(analysis: Analysis, value: str | Callable[[Columns], FloatArray]) -> list[Curve]:
    """Build the curves of a field of steps.jsonl, or of a function of its fields, for every arm that recorded it."""
    axis = training_axis(analysis)

    def points(m: Measurement) -> Points:
        return np.column_stack([axis.of_steps(m), m.steps[value] if isinstance(value, str) else value(m.steps)])

    return curves_of(analysis, points)


def evaluation_curves(analysis: Analysis, metric: str, alpha: float) -> list[Curve]:
    """Build the curves of a metric over all evaluations, starting with the model before training.

    alpha: the band has level 1 - alpha. Cells whose final evaluation lacks the metric are left out, as in every
    comparison, so each line ends in the score that is compared.
    """
    axis = training_axis(analysis)
    starts = {arm: analysis.base_metrics(arm).get(metric) for arm in analysis.measurements}

    def points(m: Measurement) -> Points:
        if m.final_value(metric) is None:
            return []
        return [
            (0, starts[m.cell.arm]),
            *((axis.of_evaluation(m, row), row["metrics"].get(metric)) for row in m.evaluations),
        ]

    return curves_of(analysis, points, evaluation_mean, alpha)


def paired_curves(curves: Sequence[Curve], baseline: str, alpha: float) -> list[Curve]:
    """Build the curves of each arm's evaluations minus the baseline's, paired by seed.

    alpha: the band has level 1 - alpha.
    The differences are taken at the arm's own x, within the range that both lines cover; the baseline is interpolated
    linearly. The last point is the difference of the final values, placed midway between the two last x. Arms whose
    seeds never share a range with the baseline are left out.
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
    """Build a line through the points with a finite y. If an x occurs several times, its last point counts."""
    x, y = np.asarray(points, dtype=np.float64).reshape(-1, 2).T  # None becomes NaN
    if np.isfinite(y).all() and (np.diff(x) > 0).all():  # A fast path for most lines, in a fifth of the time.
        return Line(seed, x.copy(), y.copy())
    x, y = x[np.isfinite(y)][::-1], y[np.isfinite(y)][::-1]
    # np.unique returns the first of several equal x, so the order was reversed above.
    x, last = np.unique(x, return_index=True)
    return Line(seed, x, y[last])


def mean_curve(arm: str, lines: Sequence[Line], alpha: float) -> Curve:
    """Average the seeds, interpolated linearly, on an even grid with as many points as the shortest seed has.

    Seeds with identical x values keep them. The grid is empty if no range is covered by all seeds.
    """
    grid = _shared_grid(lines)
    return _average(arm, lines, grid, np.array([np.interp(grid, line.x, line.y) for line in lines]), alpha)


def evaluation_mean(arm: str, lines: Sequence[Line], alpha: float) -> Curve:
    """Average the seeds like `mean_curve`, but end in the mean of their last values, at the mean of their last x.

    Comparisons use the final scores, wherever the seeds end. A curve that stopped at the last x that all seeds reach
    would end in a different mean and band.
    """
    grid = _shared_grid(lines)
    end = float(np.mean([line.x[-1] for line in lines]))
    # Drop the last shared point if it is so close to the end that the two would almost coincide.
    half_spacing = np.diff(grid[-2:]).sum() / 2
    grid = grid[grid < end - half_spacing]
    values = np.array([[*np.interp(grid, line.x, line.y), line.y[-1]] for line in lines])
    return _average(arm, lines, np.append(grid, end), values, alpha)


def _shared_grid(lines: Sequence[Line]) -> FloatArray:
    """Return the grid of x values that all lines cover."""
    first, last = max(line.x[0] for line in lines), min(line.x[-1] for line in lines)
    if all(np.array_equal(line.x, lines[0].x) for line in lines):
        return lines[0].x
    points = min(len(line.x) for line in lines) if last > first else int(last == first)
    return np.linspace(first, last, points)


def _average(arm: str, lines: Sequence[Line], grid: FloatArray, values: FloatArray, alpha: float) -> Curve:
    """Average values [seeds, grid] into the curve of an arm."""
    nothing = np.full(len(grid), math.nan)
    low, high = t_band(values, alpha) if len(lines) >= MIN_PAIRS else (nothing, nothing)
    return Curve(arm, list(lines), grid, values.mean(axis=0), low, high)


def curves_of(
    analysis: Analysis,
    points: Callable[[Measurement], Points],
    average: Callable[[str, Sequence[Line], float], Curve] = mean_curve,
    alpha: float | None = None,
) -> list[Curve]:
    """Build a curve for every arm that has a cell with points.

    points: the points of one cell.
    average: turns an arm's lines into its curve.
    alpha: the band has level 1 - alpha; None for the sweep's alpha.
    """
    curves = []
    for arm, cells in analysis.measurements.items():
        lines = [line for m in cells if len((line := to_line(m.cell.seed, points(m))).x)]
        if lines:
            curves.append(average(arm, lines, alpha or analysis.sweep.alpha))
    return curves


def curves_over_k(analysis: Analysis, family: str) -> list[Curve]:
    """Build the curves of a metric of the final evaluation over k. family: `pass` for pass@k, `maj` for maj@k."""

    def points(m: Measurement) -> Points:
        return points_over_k({} if m.final is None else m.final["metrics"], family)

    return [curve.scaled(100) for curve in curves_of(analysis, points)]


def points_over_k(metrics: Mapping[str, float | None], family: str) -> list[tuple[float, float | None]]:
    """Return the pairs (k, value) of all `<family>@k` among the metrics, sorted by k."""
    named = {name: name.removeprefix(f"{family}@") for name in metrics if name.startswith(f"{family}@")}
    return sorted(((int(k), metrics[name]) for name, k in named.items() if k.isdecimal()), key=lambda point: point[0])


def base_line_over_k(metrics: Mapping[str, float | None], family: str) -> Line | None:
    """Return pass@k or maj@k of the model before training, in percent; None if it was not measured."""
    line = to_line(0, points_over_k(metrics, family))
    return Line(0, line.x, 100 * line.y) if len(line.x) else None
