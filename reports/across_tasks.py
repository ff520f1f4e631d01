"""Arms over all tasks of a sweep that evaluates three or more, in percentage points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.measurements import Measurement, Metric, finite
from reports.statistics import Estimate, FloatArray, interquartile_mean_over_tasks, probability_of_improvement

if TYPE_CHECKING:
    from harness.records import SweepRecord

MIN_TASKS = 3


@dataclass(frozen=True)
class AcrossTasks:
    """One arm. `seeds`: those with a final score on every task. `improvement`: of a run over one of the baseline's."""

    arm: str
    seeds: list[int]
    iqm_pp: Estimate
    improvement: Estimate | None


def across_tasks(sweep: SweepRecord, metric: Metric, measurements: dict[str, list[Measurement]]) -> list[AcrossTasks]:
    """Every arm that has a seed with a score on all tasks; empty with fewer than three tasks.

    The compared metric's name is read on every task, so that all have one scale.
    """
    if len(sweep.tasks) < MIN_TASKS:
        return []
    tables = {arm: _table(sweep.tasks, metric.name, cells) for arm, cells in measurements.items()}
    baseline = tables[sweep.baseline]
    return [
        AcrossTasks(
            arm=arm,
            seeds=list(rows),
            iqm_pp=interquartile_mean_over_tasks(_array(rows), sweep.alpha, same_runs=True),
            improvement=None
            if arm == sweep.baseline or not baseline
            else probability_of_improvement(_array(rows), _array(baseline), sweep.alpha, same_runs=True),
        )
        for arm, rows in tables.items()
        if rows
    ]


def _table(tasks: list[str], name: str, cells: list[Measurement]) -> dict[int, list[float]]:
    """Final scores (pp) on every task, by seed."""
    table = {}
    for m in cells:
        final = {row["task"]: finite(row["metrics"].get(name)) for row in m.cell.read_scores() if row["final"]}
        scores = [100 * score for task in tasks if (score := final.get(task)) is not None]
        if len(scores) == len(tasks):
            table[m.cell.seed] = scores
    return table


def _array(rows: dict[int, list[float]]) -> FloatArray:
    """[n_runs, n_tasks]."""
    return np.array([*rows.values()], dtype=np.float64)


def across_tasks_rows(arms: list[AcrossTasks]) -> list[dict[str, Any]]:
    """Rows of report.json, one an arm."""
    return [
        {
            "arm": arm.arm,
            "seeds": arm.seeds,
            "level": 1 - arm.iqm_pp.alpha,
            "iqm_pp": arm.iqm_pp.value,
            "iqm_low_pp": arm.iqm_pp.low,
            "iqm_high_pp": arm.iqm_pp.high,
            "improvement": None if arm.improvement is None else arm.improvement.value,
            "improvement_low": None if arm.improvement is None else arm.improvement.low,
            "improvement_high": None if arm.improvement is None else arm.improvement.high,
        }
        for arm in arms
    ]
