"""How often each arm solves each problem of the compared task, and contrasts over new problems.

The latter answer another question: what the difference would be on new problems of the kind as well as with new seeds.
A sweep asks it with `compare: {new_problems: true}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reports.measure import Analysis, derived
from reports.measure.contrasts import Contrast
from reports.measure.measurements import Measurement
from reports.statistics import CrossedEstimate, FloatArray, over_seeds_and_problems

MIN_PROBLEMS = 5
"""Fewer problems hardly show how much problems differ: with two, intervals are wider than scores can lie apart."""


@dataclass(frozen=True)
class ProblemScores:
    """The share of right samples of each problem in the final evaluation.

    problems [n_problems]: in the order of the evaluation. by_arm: for each arm and seed the shares [n_problems], NaN if
    a cell did not evaluate a problem.
    """

    problems: list[str]
    by_arm: dict[str, dict[int, FloatArray]]

    def mean(self, arm: str) -> FloatArray:
        """The mean over the arm's seeds [n_problems]; NaN for a problem that none evaluated."""
        return mean_of_known(self.by_arm[arm].values(), len(self.problems))

    def differences(self, arm: str, baseline: str) -> FloatArray:
        """Arm minus baseline on each problem [n_problems], over the seeds that both have."""
        pairs = self.paired_seeds(arm, baseline)
        return mean_of_known(
            [self.by_arm[arm][seed] - self.by_arm[baseline][seed] for seed in pairs], len(self.problems)
        )

    def paired_seeds(self, arm: str, baseline: str) -> list[int]:
        others = self.by_arm.get(baseline, {})
        return [seed for seed in self.by_arm.get(arm, {}) if seed in others]

    def rows(self) -> dict[str, list[Any]]:
        """The columns of a table with a row for each arm, seed and problem."""
        known = [
            (arm, seed, problem, float(shares[problem]))
            for arm, by_seed in self.by_arm.items()
            for seed, shares in by_seed.items()
            for problem in np.flatnonzero(~np.isnan(shares))
        ]
        return {
            "arm": [arm for arm, _, _, _ in known],
            "seed": [seed for _, seed, _, _ in known],
            "problem_id": [self.problems[problem] for _, _, problem, _ in known],
            "correct_frac": [share for _, _, _, share in known],
        }


@derived
def problem_scores(analysis: Analysis) -> ProblemScores:
    """The scores of every cell that kept its samples; arms without such a cell are left out."""
    position: dict[str, int] = {}
    read: dict[str, dict[int, tuple[list[int], FloatArray]]] = {}
    for arm, cells in analysis.measurements.items():
        for m in cells:
            if (shares := _correct_fracs(m)) is not None:
                places = [position.setdefault(problem, len(position)) for problem in shares[0]]
                read.setdefault(arm, {})[m.cell.seed] = (places, shares[1])
    by_arm: dict[str, dict[int, FloatArray]] = {}
    for arm, by_seed in read.items():
        by_arm[arm] = {}
        for seed, (places, values) in by_seed.items():
            by_arm[arm][seed] = np.full(len(position), np.nan)
            by_arm[arm][seed][places] = values
    return ProblemScores(list(position), by_arm)


def mean_of_known(rows: Any, n: int) -> FloatArray:
    """The mean over rows [n] without NaN; NaN where no row has a number."""
    values = np.array(list(rows), dtype=np.float64).reshape(-1, n)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: FloatArray = np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
    return mean


def _correct_fracs(measurement: Measurement) -> tuple[list[str], FloatArray] | None:
    """The problems of a cell, with the share of right samples of each."""
    table = measurement.final_samples
    if table is None or table.num_rows == 0 or not {"problem_id", "correct"} <= set(table.column_names):
        return None
    coded = table["problem_id"].combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    right = table["correct"].to_numpy().astype(np.float64)
    problems = [str(problem) for problem in coded.dictionary.to_pylist()]
    return problems, np.bincount(codes, weights=right) / np.bincount(codes)


@dataclass(frozen=True)
class NewProblems:
    """A difference over new problems. estimate: in percentage points; None if there is none, and `refused` says why."""

    estimate: CrossedEstimate | None
    refused: str = ""


def over_new_problems(analysis: Analysis, contrast: Contrast) -> NewProblems | None:
    """The contrast's difference over new seeds and new problems, at its level; None if the sweep does not ask for
    it."""
    if not analysis.sweep.new_problems:
        return None
    arms = [{m.cell.seed: m for m in analysis.measurements[arm]} for arm in (contrast.arm, contrast.baseline)]
    pairs = [[by_seed[seed] for by_seed in arms] for seed in contrast.seeds]
    scores = [[m.problem_scores_pp for m in pair] for pair in pairs]
    if not scores or contrast.comparison is None:
        return NewProblems(None, "no seed has a score in both arms")
    shared = sorted(set.intersection(*(set(one) for pair in scores for one in pair)))
    if not shared:
        return NewProblems(None, f"the records hold no {pairs[0][0].metric.name} for single problems")
    if len(shared) < MIN_PROBLEMS:
        return NewProblems(
            None,
            f"an interval over problems needs at least {MIN_PROBLEMS} problems with a {pairs[0][0].metric.name} in"
            f" every run, and there are {len(shared)}",
        )
    differences = np.array([[treated[name] - control[name] for name in shared] for treated, control in scores])
    return NewProblems(over_seeds_and_problems(differences, contrast.comparison.alpha))


def new_problems_row(found: NewProblems | None) -> dict[str, Any] | None:
    """What report.json says of a contrast over new problems."""
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
