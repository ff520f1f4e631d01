"""The problems on which arms differ most, with every arm's accuracy on them."""

from __future__ import annotations

import numpy as np

from reports.analysis import Analysis
from reports.formats import percent
from reports.table import Table

MOST_PROBLEMS = 12
NOTE = (
    "Share of right samples of the final evaluation, over the seeds of an arm; the problems with the widest range"
    " between arms. They are the extremes of many: expect part of their range to be chance, and less of it next time."
)


def problem_table(analysis: Analysis) -> Table | None:
    """None with fewer than two arms that kept their samples, or where all arms solve every problem equally often."""
    scores = analysis.problems
    if len(scores.by_arm) < 2:
        return None
    accuracy = np.array([scores.mean(arm) for arm in scores.by_arm])
    known = np.isfinite(accuracy).all(axis=0)
    spread = np.where(known, np.ptp(np.nan_to_num(accuracy), axis=0), 0.0)
    widest = [int(i) for i in np.argsort(-spread, kind="stable")[:MOST_PROBLEMS] if spread[i] > 0]
    if not widest:
        return None
    seeds = {arm: len(by_seed) for arm, by_seed in scores.by_arm.items()}
    columns = ["problem", "range (pp)", *(f"{arm} (n = {n})" for arm, n in seeds.items())]
    rows = [
        [scores.problems[i], f"{100 * spread[i]:.0f}", *(percent(float(share)) for share in accuracy[:, i])]
        for i in widest
    ]
    return Table(f"Problems of {analysis.metric.task} that changed most", columns, rows, NOTE)
