"""How often each arm solves each problem of the compared task, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reports.measurements import Measurement
from reports.statistics import FloatArray


@dataclass(frozen=True)
class ProblemScores:
    """Of the final evaluation. `problems` [n_problems] in the order of the evaluation.

    `by_arm`: for each arm the share of right samples by seed, [n_problems], NaN where a cell did not evaluate
    a problem.
    """

    problems: list[str]
    by_arm: dict[str, dict[int, FloatArray]]

    def mean(self, arm: str) -> FloatArray:
        """Over the arm's seeds, [n_problems]; NaN for a problem that none evaluated."""
        return mean_of_known(self.by_arm[arm].values(), len(self.problems))

    def differences(self, arm: str, baseline: str) -> FloatArray:
        """Arm minus baseline on each problem, over the seeds that both have, [n_problems]."""
        pairs = self.paired_seeds(arm, baseline)
        return mean_of_known(
            [self.by_arm[arm][seed] - self.by_arm[baseline][seed] for seed in pairs], len(self.problems)
        )

    def paired_seeds(self, arm: str, baseline: str) -> list[int]:
        others = self.by_arm.get(baseline, {})
        return [seed for seed in self.by_arm.get(arm, {}) if seed in others]

    def rows(self) -> dict[str, list[Any]]:
        """Columns of a table with a row for each arm, seed and problem."""
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


def problem_scores(measurements: dict[str, list[Measurement]]) -> ProblemScores:
    """Read the verdicts of every cell that kept its samples; arms without such a cell are left out."""
    position: dict[str, int] = {}
    read: dict[str, dict[int, tuple[list[int], FloatArray]]] = {}
    for arm, cells in measurements.items():
        for m in cells:
            if (shares := _shares(m)) is not None:
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
    """Mean over rows of [n], leaving out NaN; NaN where nothing is known."""
    values = np.array(list(rows), dtype=np.float64).reshape(-1, n)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: FloatArray = np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
    return mean


def _shares(measurement: Measurement) -> tuple[list[str], FloatArray] | None:
    """The problems of one cell and the share of right samples of each."""
    table = measurement.final_samples
    if table is None or table.num_rows == 0 or not {"problem_id", "correct"} <= set(table.column_names):
        return None
    coded = table["problem_id"].combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    right = table["correct"].to_numpy().astype(np.float64)
    problems = [str(problem) for problem in coded.dictionary.to_pylist()]
    return problems, np.bincount(codes, weights=right) / np.bincount(codes)
