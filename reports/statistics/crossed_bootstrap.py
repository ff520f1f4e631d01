"""Estimand B: the arms' difference over new training seeds and new problems of the same kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.checks import RELATIVE_TOLERANCE, FloatArray, finite_table, require_level
from reports.statistics.verdicts import MIN_PAIRS

DRAWS = 2000


@dataclass(frozen=True)
class CrossedEstimate:
    """Mean difference with its interval at level 1 - `alpha`; NaN for fewer than three seeds or two problems."""

    n_seeds: int
    n_problems: int
    alpha: float
    difference: float
    standard_error: float
    low: float
    high: float


def crossed_bootstrap(
    differences: Sequence[Sequence[float]] | FloatArray, alpha: float = 0.05, *, draws: int = DRAWS, seed: int = 0
) -> CrossedEstimate:
    """The mean of `differences` [n_seeds, n_problems] over a population of seeds, crossed with one of problems.

    Seeds and problems are drawn with replacement, independently of each other (the two-way or pigeonhole bootstrap,
    Owen 0712.1111), which gives the standard error. The interval is that times Student's t for the factor with fewer
    levels, and widened by sqrt(n / (n - 1)) for it: percentiles of so few seeds would be too narrow. Where one sample a
    problem makes noise that is neither the seed's nor the problem's, the error is too large rather than too small.
    Differences that are all equal give a zero-width interval.
    Raises ValueError for another shape or entries that are not finite.
    """
    from scipy.special import stdtrit

    table = finite_table("differences", differences, "[n_seeds, n_problems]")
    require_level(alpha)
    n_seeds, n_problems = table.shape
    difference = float(table.mean())
    if n_seeds < MIN_PAIRS or n_problems < 2:
        return CrossedEstimate(n_seeds, n_problems, alpha, difference, math.nan, math.nan, math.nan)
    if np.ptp(table) <= RELATIVE_TOLERANCE * np.abs(table).max():
        return CrossedEstimate(n_seeds, n_problems, alpha, difference, 0.0, difference, difference)
    rng = np.random.default_rng(seed)
    seed_weights = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=draws) / n_seeds
    problem_weights = rng.multinomial(n_problems, np.full(n_problems, 1 / n_problems), size=draws) / n_problems
    means = ((seed_weights @ table) * problem_weights).sum(axis=1)
    fewest = min(n_seeds, n_problems)
    error = float(means.std(ddof=1)) * math.sqrt(fewest / (fewest - 1))
    half_width = float(stdtrit(fewest - 1, 1 - alpha / 2)) * error
    return CrossedEstimate(
        n_seeds, n_problems, alpha, difference, error, difference - half_width, difference + half_width
    )
