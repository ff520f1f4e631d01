"""The arms on every task that the sweep evaluates: one comparison per task, and summaries over three or more tasks."""

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
    """Compare the arms on every task, and return the contrasts by task.

    The compared task comes first, then the others in the order of the sweep file. Tasks without a paired seed are left
    out. Only the verdicts on the compared task are tests. The intervals on other tasks have the same level but are
    descriptive, and their Holm-adjusted p values have no meaning.
    """
    compared = analysis.metric.task
    # The searches tuned on the compared task, so how far they fell short on other tasks is unknown.
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
    """The summary of one arm over all tasks, in percentage points."""

    arm: str
    seeds: list[int]
    """The seeds that have a final score on every task."""
    iqm_pp: Estimate
    improvement: Estimate | None
    """The probability that a run of the arm beats a run of the baseline, computed from the seeds that both have.

    None for the baseline itself, or if no seed is shared.
    """


@derived
def across_tasks(analysis: Analysis) -> list[AcrossTasks]:
    """Summarise every arm that has a seed with a score on all tasks; return [] for fewer than three tasks.

    The same metric is read on every task, so all scores are on one scale.
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
