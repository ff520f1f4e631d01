"""Arms on all tasks that a sweep evaluates: task by task, and over three or more together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reports.measure import Analysis, derived
from reports.measure.contrasts import Contrast, compare_arms
from reports.measure.measurements import Measurement, finite
from reports.report import AcrossTasksRow
from reports.statistics import Estimate, FloatArray, interquartile_mean_over_tasks, probability_of_improvement

MIN_TASKS = 3


def contrasts_by_task(analysis: Analysis) -> dict[str, list[Contrast]]:
    """Compare arms on every task, and return the contrasts by task.

    The compared task comes first, then the others in the order of the sweep file. Tasks without a paired seed are left
    out. Only the compared task is tested. Intervals on the others, at the same level, are descriptive, and Holm's p has
    no meaning there.
    """
    compared = analysis.metric.task
    # The searches used the compared task, so what they left open is unknown on the others.
    untuned = analysis.sweep.model_copy(update={"tuning": None})
    by_task = {compared: analysis.contrasts}
    for task in analysis.sweep.tasks:
        if task != compared:
            measured = {arm: [m.on_task(task) for m in cells] for arm, cells in analysis.measurements.items()}
            by_task[task] = compare_arms(untuned, measured)
    return {
        task: contrasts
        for task, contrasts in by_task.items()
        if any(contrast.comparison is not None for contrast in contrasts)
    }


@dataclass(frozen=True)
class AcrossTasks:
    """One arm over all tasks, in percentage points."""

    arm: str
    seeds: list[int]
    """The seeds with a final score on every task."""
    iqm_pp: Estimate
    improvement: Estimate | None
    """The probability that a run of the arm beats one of the baseline, over shared seeds; None without any.

    None for the baseline itself, too.
    """


@derived
def across_tasks(analysis: Analysis) -> list[AcrossTasks]:
    """Summarise every arm that has a seed with a score on all tasks; [] with fewer than three tasks.

    It reads the metric of one name on every task, so all scores have one scale.
    """
    sweep = analysis.sweep
    if len(sweep.tasks) < MIN_TASKS:
        return []
    tables = {arm: _table(sweep.tasks, analysis.metric.name, cells) for arm, cells in analysis.measurements.items()}
    baseline = tables[sweep.baseline]
    return [
        AcrossTasks(
            arm=arm,
            seeds=list(rows),
            iqm_pp=interquartile_mean_over_tasks(_array(rows, rows), sweep.alpha),
            improvement=None
            if arm == sweep.baseline or not (shared := [seed for seed in rows if seed in baseline])
            else probability_of_improvement(_array(rows, shared), _array(baseline, shared), sweep.alpha),
        )
        for arm, rows in tables.items()
        if rows
    ]


def _table(tasks: list[str], name: str, cells: list[Measurement]) -> dict[int, list[float]]:
    """Return the final scores on every task, in percentage points, by seed."""
    table = {}
    for m in cells:
        final = {row["task"]: finite(row["metrics"].get(name)) for row in m.scores if row["final"]}
        scores = [100 * score for task in tasks if (score := final.get(task)) is not None]
        # A seed that lacks one task would shift the mean over tasks, so it is left out.
        if len(scores) == len(tasks):
            table[m.cell.seed] = scores
    return table


def _array(rows: dict[int, list[float]], seeds: Iterable[int]) -> FloatArray:
    """Return the scores of these seeds as [n_runs, n_tasks]."""
    return np.array([rows[seed] for seed in seeds], dtype=np.float64)


def across_tasks_rows(arms: list[AcrossTasks]) -> list[AcrossTasksRow]:
    """Build the rows of report.json, one per arm."""
    return [
        AcrossTasksRow(
            arm=arm.arm,
            seeds=arm.seeds,
            level=1 - arm.iqm_pp.alpha,
            iqm_pp=arm.iqm_pp.value,
            iqm_low_pp=arm.iqm_pp.low,
            iqm_high_pp=arm.iqm_pp.high,
            improvement=None if arm.improvement is None else arm.improvement.value,
            improvement_low=None if arm.improvement is None else arm.improvement.low,
            improvement_high=None if arm.improvement is None else arm.improvement.high,
        )
        for arm in arms
    ]
