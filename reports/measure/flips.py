"""Flips: the problems on which the arms differ most, and a test of whether chance alone would produce such differences.

The most extreme of many problems always look meaningful.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reports.measure import Analysis, derived
from reports.measure.problems import ProblemScores, problem_scores
from reports.report import Flip, ProblemRange, ProblemRanges
from reports.statistics import FloatArray

FLIPS_PER_CONTRAST = 3
MOST_PROBLEMS = 12
DRAWS = 1999
DRAWS_AT_ONCE = 100
DECIMALS = 12
"""Shares are rounded to this many decimals, so that sums in a different order still tie."""


@dataclass(frozen=True)
class Ranges:
    """How far the arms' shares of correct samples lie apart on the problems where they differ most."""

    problems: list[int]
    """The positions of at most MOST_PROBLEMS problems, widest range first."""
    ranges_pp: list[float]
    """The range of each of these problems: highest minus lowest share among the arms."""
    permuted_pp: list[float]
    """The mean range at the same rank after arms are swapped at random within seeds."""
    p: float
    """The p value of the widest range: the share of arrangements whose widest range is at least as wide."""
    n_problems: int


@derived
def problem_ranges(analysis: Analysis) -> Ranges | None:
    """Compute the ranges of an analysis.

    None if fewer than two arms kept samples, or if all arms solve every problem equally often.
    """
    scores = problem_scores(analysis)
    return ranges_of(scores.by_arm) if len(scores.by_arm) > 1 else None


def ranges_of(by_arm: dict[str, dict[int, FloatArray]]) -> Ranges | None:
    """Compute the ranges from each arm's and seed's shares [n_problems], over the problems that every cell evaluated.

    Under the null hypothesis that the arms do not differ, the cells of a seed can be swapped between arms, each with
    all of its problems. So the permutation test of the widest range is exact for any number of seeds. The observed
    arrangement counts as one of 1 + 1999.
    """
    cells = [(arm, seed) for arm, by_seed in enumerate(by_arm.values()) for seed in by_seed]
    arms, seeds = np.array(cells).T
    shares = np.array([share for by_seed in by_arm.values() for share in by_seed.values()])
    known = np.flatnonzero(np.isfinite(shares).all(axis=0))
    if not len(known):
        return None
    rng = np.random.default_rng(0)
    counts = np.bincount(arms)

    def ranges(drawn_arms: npt.NDArray[np.int64]) -> FloatArray:
        """Compute the range over arms [draws, n_known] of each problem, given each cell's arm [draws, n_cells]."""
        of_arm = (drawn_arms[:, None, :] == np.arange(len(counts))[:, None]) / counts[:, None]
        return np.asarray(np.ptp(of_arm @ shares[:, known], axis=1).round(DECIMALS), dtype=np.float64)

    (observed,) = ranges(arms[None])
    widest = [place for place in np.argsort(-observed, kind="stable")[:MOST_PROBLEMS] if observed[place] > 0]
    if not widest:
        return None
    in_order = []
    # Process DRAWS_AT_ONCE arrangements at a time, to bound the memory.
    for start in range(0, DRAWS, DRAWS_AT_ONCE):
        drawn = np.tile(arms, (min(DRAWS_AT_ONCE, DRAWS - start), 1))
        for seed in np.unique(seeds):
            drawn[:, seeds == seed] = rng.permuted(drawn[:, seeds == seed], axis=1)
        in_order.append(-np.sort(-ranges(drawn), axis=1)[:, : len(widest)])
    permuted = np.concatenate(in_order)
    as_wide = int(np.count_nonzero(permuted[:, 0] >= observed[widest[0]]))
    return Ranges(
        problems=[int(known[place]) for place in widest],
        ranges_pp=[float(100 * observed[place]) for place in widest],
        permuted_pp=(100 * permuted.mean(axis=0)).tolist(),
        p=(1 + as_wide) / (1 + DRAWS),
        n_problems=len(known),
    )


def ranges_rows(analysis: Analysis) -> list[ProblemRanges]:
    """Build the row of report.json about ranges, as a list that is empty if there are no ranges."""
    found, scores = problem_ranges(analysis), problem_scores(analysis)
    if found is None:
        return []
    problems = zip(found.problems, found.ranges_pp, found.permuted_pp, strict=True)
    return [
        ProblemRanges(
            task=analysis.metric.task,
            n_problems=found.n_problems,
            p=found.p,
            beyond_chance=found.p <= analysis.sweep.alpha,
            widest=[
                ProblemRange(problem_id=scores.problems[problem], range_pp=size, permuted_pp=permuted)
                for problem, size, permuted in problems
            ],
        )
    ]


def find_flips(analysis: Analysis) -> list[Flip]:
    """Return each arm's flips, in the order of the sweep file, biggest change first; [] if no samples were kept."""
    scores, baseline = problem_scores(analysis), analysis.sweep.baseline
    return [
        _flip(analysis, arm, problem)
        for arm in scores.by_arm
        if arm != baseline and scores.paired_seeds(arm, baseline)
        for problem in biggest_movers(scores, arm, baseline)
    ]


def biggest_movers(scores: ProblemScores, arm: str, baseline: str, n: int = FLIPS_PER_CONTRAST) -> list[int]:
    """Return the positions of the n problems that changed most in either direction. Unchanged problems are left out."""
    size = np.nan_to_num(np.abs(scores.differences(arm, baseline)))
    order = np.argsort(-size, kind="stable")[:n]
    return [int(problem) for problem in order if size[problem] > 0]


def _flip(analysis: Analysis, arm: str, problem: int) -> Flip:
    scores, baseline = problem_scores(analysis), analysis.sweep.baseline
    seeds = scores.paired_seeds(arm, baseline)
    before, after = (np.array([scores.by_arm[name][seed][problem] for seed in seeds]) for name in (baseline, arm))
    known = np.isfinite(after - before)
    arm_frac, baseline_frac = float(after[known].mean()), float(before[known].mean())
    return Flip(
        arm=arm,
        baseline=baseline,
        task=analysis.metric.task,
        problem_id=scores.problems[problem],
        baseline_frac=baseline_frac,
        arm_frac=arm_frac,
        n_seeds=int(known.sum()),
        difference_pp=100 * (arm_frac - baseline_frac),
    )
