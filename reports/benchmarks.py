"""The contrasts on every task that a sweep evaluates, by the metric of the compared one."""

from __future__ import annotations

from reports.analysis import Analysis
from reports.contrasts import Contrast, compare_arms


def contrasts_by_task(analysis: Analysis) -> dict[str, list[Contrast]]:
    """The compared task first, the others in the sweep's order; tasks without a pair of cells are left out.

    Only the compared task is tested: elsewhere the intervals describe, at the same level, and Holm's p is not to be
    read.
    """
    compared = analysis.metric.task
    by_task = {compared: analysis.contrasts}
    for task in analysis.sweep.tasks:
        if task != compared:
            measured = {arm: [m.on_task(task) for m in cells] for arm, cells in analysis.measurements.items()}
            by_task[task] = compare_arms(analysis.sweep, measured)
    return {
        task: contrasts
        for task, contrasts in by_task.items()
        if any(contrast.comparison is not None for contrast in contrasts)
    }
