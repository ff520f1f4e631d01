"""Each arm's share of correct samples on each problem of the compared task, and contrasts over new problems.

A contrast over new problems estimates the difference on other problems of the same kind, in addition to new seeds. A
sweep asks for it with `compare: {new_problems: true}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.words import said
from reports.measure import Analysis, derived
from reports.measure.contrasts import Contrast
from reports.report import NewProblems
from reports.statistics import FloatArray, over_seeds_and_problems

if TYPE_CHECKING:
    import pyarrow

MIN_PROBLEMS = 5
"""The fewest problems for an interval. With two, the interval would be wider than the whole range of scores."""


@dataclass(frozen=True)
class ProblemScores:
    """The share of correct samples of each problem in the final evaluation."""

    problems: list[str]
    """[n_problems] in the order of the evaluation."""
    by_arm: dict[str, dict[int, FloatArray]]
    """By arm and seed, the shares [n_problems]; NaN for a problem that the cell did not evaluate."""

    def mean(self, arm: str) -> FloatArray:
        """Compute the mean over the arm's seeds [n_problems]; NaN for a problem that no seed evaluated."""
        return mean_of_known(self.by_arm[arm].values(), len(self.problems))

    def differences(self, arm: str, baseline: str) -> FloatArray:
        """Compute arm minus baseline on each problem [n_problems], averaged over the seeds that both have."""
        pairs = self.paired_seeds(arm, baseline)
        return mean_of_known(
            [self.by_arm[arm][seed] - self.by_arm[baseline][seed] for seed in pairs], len(self.problems)
        )

    def paired_seeds(self, arm: str, baseline: str) -> list[int]:
        others = self.by_arm.get(baseline, {})
        return [seed for seed in self.by_arm.get(arm, {}) if seed in others]

    def columns(self) -> dict[str, pyarrow.Array]:
        """Build a table with one row for each evaluated arm, seed and problem."""
        import pyarrow

        cells = [(arm, seed) for arm, by_seed in self.by_arm.items() for seed in by_seed]
        shares = np.array([self.by_arm[arm][seed] for arm, seed in cells]).reshape(len(cells), len(self.problems))
        cell, problem = np.nonzero(~np.isnan(shares))
        return {
            "arm": pyarrow.array([arm for arm, _ in cells], pyarrow.string()).take(pyarrow.array(cell)),
            "seed": pyarrow.array([seed for _, seed in cells], pyarrow.int64()).take(pyarrow.array(cell)),
            "problem_id": pyarrow.array(self.problems, pyarrow.string()).take(pyarrow.array(problem)),
            "correct_frac": pyarrow.array(shares[cell, problem], pyarrow.float64()),
        }


@derived
def problem_scores(analysis: Analysis) -> ProblemScores:
    """Collect the scores of every cell that kept its samples. Arms without such a cell are left out."""
    position: dict[str, int] = {}
    read: dict[str, dict[int, tuple[list[int], FloatArray]]] = {}
    for arm, by_seed in analysis.by_seed(lambda m: m.final_samples).items():
        for seed, samples in by_seed.items():
            if samples.is_known:
                places = [position.setdefault(problem, len(position)) for problem in samples.problems]
                read.setdefault(arm, {})[seed] = (places, samples.right_fracs)
    by_arm: dict[str, dict[int, FloatArray]] = {}
    for arm, fracs in read.items():
        by_arm[arm] = {}
        for seed, (places, values) in fracs.items():
            by_arm[arm][seed] = np.full(len(position), np.nan)
            by_arm[arm][seed][places] = values
    return ProblemScores(list(position), by_arm)


def mean_of_known(rows: Iterable[Sequence[float] | FloatArray], n: int) -> FloatArray:
    """Compute the mean over the rows [n], ignoring NaN. The result is NaN where every row is NaN."""
    values = np.array(list(rows), dtype=np.float64).reshape(-1, n)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: FloatArray = np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
    return mean


def over_new_problems(analysis: Analysis, contrast: Contrast) -> NewProblems | None:
    """Estimate the contrast's difference over new seeds and new problems, at the contrast's level.

    None unless the sweep asks for it.
    """
    if not analysis.sweep.new_problems:
        return None
    arms = [{m.cell.seed: m for m in analysis.measurements[arm]} for arm in (contrast.arm, contrast.baseline)]
    pairs = [[by_seed[seed] for by_seed in arms] for seed in contrast.seeds]
    scores = [[m.problem_scores_pp for m in pair] for pair in pairs]
    if not scores or contrast.comparison is None:
        return _refused(said("reports.no_seed_has_score"))
    # The estimate needs a full table of seeds and problems.
    shared = sorted(set.intersection(*(set(one) for pair in scores for one in pair)))
    if not shared:
        return _refused(said("reports.records_hold_no_for", name=pairs[0][0].metric.name))
    if len(shared) < MIN_PROBLEMS:
        return _refused(
            said(
                "reports.interval_over_problems_needs",
                min_problems=MIN_PROBLEMS,
                name=pairs[0][0].metric.name,
                n_shared=len(shared),
            )
        )
    differences = np.array([[treated[name] - control[name] for name in shared] for treated, control in scores])
    estimate = over_seeds_and_problems(differences, contrast.comparison.alpha)
    return NewProblems(
        refused=None,
        difference_pp=estimate.difference,
        low_pp=estimate.low,
        high_pp=estimate.high,
        level=1 - estimate.alpha,
        n_seeds=estimate.n_seeds,
        n_problems=estimate.n_problems,
    )


def _refused(why: str) -> NewProblems:
    none = dict.fromkeys(("difference_pp", "low_pp", "high_pp", "level"))
    return NewProblems(refused=why, **none, n_seeds=0, n_problems=0)
