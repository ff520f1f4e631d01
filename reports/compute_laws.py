"""The sigmoid of the score in generated tokens, of every arm and task, all seeds pooled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.laws import MIN_POINTS, ComputeLaw, LawRefusedError, fit_compute_law
from reports.measurements import Measurement, Metric, finite

if TYPE_CHECKING:
    from harness.records import SweepRecord


@dataclass(frozen=True)
class ComputeFit:
    """The law of one arm on one task, scores in percent; `law` is None where `refused` says why."""

    arm: str
    task: str
    metric: str
    n_runs: int
    n_points: int
    law: ComputeLaw | None
    refused: str


def compute_fits(sweep: SweepRecord, metric: Metric, measurements: Mapping[str, list[Measurement]]) -> list[ComputeFit]:
    """Every arm on every task; arms without an evaluation are left out. The curve starts at the score before training,
    where that was measured."""
    before = {row["task"]: finite(row["metrics"].get(metric.name)) for row in sweep.base_scores}
    return [
        _fit(arm, task, metric.name, runs, before.get(task))
        for task in sweep.tasks
        for arm, cells in measurements.items()
        if (runs := [run for m in cells if (run := _points(m, task, metric.name))])
    ]


def _points(measurement: Measurement, task: str, metric: str) -> list[tuple[float, float]]:
    """(generated tokens, score in percent) of the evaluations of one run."""
    return [
        (row["generated_tokens"], 100 * score)
        for row in measurement.cell.read_scores()
        if row["task"] == task and (score := finite(row["metrics"].get(metric))) is not None
    ]


def _fit(arm: str, task: str, metric: str, runs: list[list[tuple[float, float]]], start: float | None) -> ComputeFit:
    tokens, scores = zip(*(point for run in runs for point in run), strict=True)
    law, refused = None, ""
    most = max(map(len, runs))
    try:
        if most < MIN_POINTS:  # the same few checkpoints in many seeds are no more of a curve
            raise LawRefusedError(f"{most} evaluations a run, and a fit needs {MIN_POINTS}")
        law = fit_compute_law(tokens, scores, None if start is None else 100 * start)
    except LawRefusedError as error:
        refused = str(error)
    return ComputeFit(arm, task, metric, len(runs), len(tokens), law, refused)
