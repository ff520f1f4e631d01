"""Flips: the problems on which arms differ most, and whether chance gives as much.

The most extreme of many problems always look as if they said something.
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
"""Shares are rounded to these decimals, so that sums in another order still tie."""


@dataclass(frozen=True)
class Ranges:
    """The range, on single problems, of the arms' shares of right samples over all of their seeds."""

    problems: list[int]
    """Positions of up to MOST_PROBLEMS of `n_problems`, the widest range first."""
    ranges_pp: list[float]
    """The range on each of them."""
    permuted_pp: list[float]
    """The mean range of the problem in the same rank, if arms are exchanged within seeds."""
    p: float
    """The share of arrangements whose widest range is at least as wide."""
    n_problems: int


@derived
def problem_ranges(analysis: Analysis) -> Ranges | None:
    """Compute the ranges of an analysis.

    None with fewer than two arms that kept samples, or if all arms solve every problem equally often.
    """
    scores = problem_scores(analysis)
    return ranges_of(scores.by_arm) if len(scores.by_arm) > 1 else None


def ranges_of(by_arm: dict[str, dict[int, FloatArray]]) -> Ranges | None:
    """Compute the ranges of the shares [n_problems] of each arm and seed, over problems that every cell evaluated.

    If no arm matters, the cells of a seed may be exchanged between arms, all problems of a cell together. The test of
    the widest range is therefore exact for any number of seeds. It counts the arms as they are among 1 + 1999
    arrangements.
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
        """Compute the ranges [draws, n_known] between arms, given the arm of each cell [draws, n_cells]."""
        of_arm = (drawn_arms[:, None, :] == np.arange(len(counts))[:, None]) / counts[:, None]
        return np.asarray(np.ptp(of_arm @ shares[:, known], axis=1).round(DECIMALS), dtype=np.float64)

    (observed,) = ranges(arms[None])
    widest = [place for place in np.argsort(-observed, kind="stable")[:MOST_PROBLEMS] if observed[place] > 0]
    if not widest:
        return None
    in_order = []
    # In parts of DRAWS_AT_ONCE arrangements, which bounds the memory.
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
    """Build the rows of report.json about ranges: a single one, or none."""
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
    """Find the flips of each arm, in the order of the sweep file, the biggest change first; [] without kept samples."""
    scores, baseline = problem_scores(analysis), analysis.sweep.baseline
    return [
        _flip(analysis, arm, problem)
        for arm in scores.by_arm
        if arm != baseline and scores.paired_seeds(arm, baseline)
        for problem in biggest_movers(scores, arm, baseline)
    ]


def biggest_movers(scores: ProblemScores, arm: str, baseline: str, n: int = FLIPS_PER_CONTRAST) -> list[int]:
    """Return the positions of up to n problems that changed most, up or down. Unchanged ones are left out."""
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
