"""A contrast over new problems too (estimand B), where the sweep asks for it with `compare: {new_problems: true}`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.contrasts import Contrast
from reports.measurements import Measurement
from reports.statistics import CrossedEstimate, crossed_bootstrap

if TYPE_CHECKING:
    from harness.records import SweepRecord

MIN_PROBLEMS = 5
"""Fewer hardly show how much problems differ: of two, intervals are wider than scores can be apart."""


@dataclass(frozen=True)
class NewProblems:
    """`estimate` in percentage points; None where `refused` says why."""

    estimate: CrossedEstimate | None
    refused: str = ""


def over_new_problems(
    sweep: SweepRecord, measurements: dict[str, list[Measurement]], contrast: Contrast
) -> NewProblems | None:
    """The contrast's difference over new seeds and new problems, at its level; None where it is not asked for."""
    if not sweep.new_problems:
        return None
    pairs = [
        [next(m for m in measurements[arm] if m.cell.seed == seed) for arm in (contrast.arm, contrast.baseline)]
        for seed in contrast.seeds
    ]
    scores = [[problem_scores_pp(m) for m in pair] for pair in pairs]
    if not scores or contrast.comparison is None:
        return NewProblems(None, "no seed has a score in both arms")
    shared = sorted(set.intersection(*(set(one) for pair in scores for one in pair)))
    if not shared:
        return NewProblems(None, f"the records hold no {pairs[0][0].metric.name} of single problems")
    if len(shared) < MIN_PROBLEMS:
        return NewProblems(
            None,
            f"an interval over problems takes at least {MIN_PROBLEMS} of them with a {pairs[0][0].metric.name} in every"
            f" run, not {len(shared)}",
        )
    differences = np.array([[treated[name] - control[name] for name in shared] for treated, control in scores])
    return NewProblems(crossed_bootstrap(differences, contrast.comparison.alpha))


def problem_scores_pp(measurement: Measurement) -> dict[str, float]:
    """The compared metric of every problem in the final evaluation, by its id, in percent.

    Of pass@k (2107.03374, eq. 1) and avg@n; empty for another metric and where no samples were kept.
    """
    metric, table = measurement.metric, measurement.cell.read_evals()
    name = "pass@1" if metric.name == "avg@n" else metric.name
    if table is None or not name.startswith("pass@"):
        return {}
    k = int(name.removeprefix("pass@"))
    rows = table.select(["final", "task", "problem_id", "correct"]).to_pydict()
    samples: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    for final, task, problem, right in zip(*rows.values(), strict=True):
        if final and task == metric.task:
            samples[problem] += 1
            correct[problem] += bool(right)
    return {
        problem: 100 * (1 - math.comb(n - correct[problem], k) / math.comb(n, k))
        for problem, n in samples.items()
        if n >= k
    }


def new_problems_row(found: NewProblems | None) -> dict[str, Any] | None:
    """What report.json says of a contrast."""
    if found is None:
        return None
    estimate = found.estimate
    return {
        "refused": found.refused or None,
        "difference_pp": None if estimate is None else estimate.difference,
        "low_pp": None if estimate is None else estimate.low,
        "high_pp": None if estimate is None else estimate.high,
        "level": None if estimate is None else 1 - estimate.alpha,
        "n_seeds": 0 if estimate is None else estimate.n_seeds,
        "n_problems": 0 if estimate is None else estimate.n_problems,
    }
