"""Arms over several tasks.

Every bootstrap draws with a fixed seed, so the same scores give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.means import (
    MIN_PAIRS,
    FloatArray,
    finite_table,
    require_level,
    trimmed_mean,
)

DRAWS = 2000


Table = Sequence[Sequence[float]] | FloatArray


@dataclass(frozen=True)
class Estimate:
    """A number with its percentile bootstrap interval at level 1 - `alpha`, which is NaN with fewer than three runs."""

    value: float
    low: float
    high: float
    alpha: float


def interquartile_mean_over_tasks(
    scores: Table, alpha: float = 0.05, *, same_runs: bool = False, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """The interquartile mean of all runs on all tasks, with a stratified bootstrap (Agarwal et al. 2108.13264).

    scores [n_runs, n_tasks]: a row is one trained policy, evaluated on every task. The middle half of all scores
    counts, whatever their task, so tasks must share one scale, as fractions of right answers do. The bootstrap draws
    runs with replacement, never tasks. It draws them for each task anew, as in the paper, or whole rows with same_runs:
    use this where one policy was evaluated on every task, because its scores then rise and fall together. Percentiles
    of few runs are too narrow: with three runs a nominal 95% covers far less.

    Raises ValueError for another shape or scores that are not finite.
    """
    table = finite_table("scores", scores, "[n_runs, n_tasks]")
    drawn = _resampled(table, np.random.default_rng(seed), draws, same_runs)
    values = trimmed_mean(drawn.reshape(draws, -1))
    return _estimate(float(trimmed_mean(table.ravel())), values, alpha, len(table))


def probability_of_improvement(
    treatment: Table,
    baseline: Table,
    alpha: float = 0.05,
    *,
    same_runs: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """How likely a run of the treatment is to beat a run of the baseline on a random task (Agarwal et al. 2108.13264).

    treatment [n_runs, n_tasks], baseline [m_runs, n_tasks]: the same tasks in the same order. On each task it is the
    share of all n x m pairs of runs in which the treatment is higher, a tie counting half (the Mann-Whitney statistic);
    the result is the mean over tasks. 0.5 means no difference; it does not say how much higher. same_runs: as in
    `interquartile_mean_over_tasks`; the two arms are drawn independently of each other.

    Raises ValueError for unequal tasks or scores that are not finite.
    """
    treated = finite_table("treatment", treatment, "[n_runs, n_tasks]")
    control = finite_table("baseline", baseline, "[n_runs, n_tasks]")
    if treated.shape[1] != control.shape[1]:
        raise ValueError(f"treatment has {treated.shape[1]} tasks and baseline {control.shape[1]}: give the same tasks")
    rng = np.random.default_rng(seed)
    values = _mean_wins(_resampled(treated, rng, draws, same_runs), _resampled(control, rng, draws, same_runs))
    return _estimate(float(_mean_wins(treated, control)), values, alpha, min(len(treated), len(control)))


def _mean_wins(treated: FloatArray, control: FloatArray) -> FloatArray:
    """[..., n_runs, n_tasks] and [..., m_runs, n_tasks] -> [...]."""
    signs = np.sign(treated[..., :, None, :] - control[..., None, :, :])
    return np.asarray((1 + signs).mean(axis=(-3, -2, -1)) / 2, dtype=np.float64)


def _resampled(table: FloatArray, rng: np.random.Generator, draws: int, same_runs: bool) -> FloatArray:
    """[draws, n_runs, n_tasks]."""
    n_runs, n_tasks = table.shape
    chosen = rng.integers(n_runs, size=(draws, n_runs, 1 if same_runs else n_tasks))
    return table[chosen, np.arange(n_tasks)]


def _estimate(value: float, values: FloatArray, alpha: float, n_runs: int) -> Estimate:
    require_level(alpha)
    if n_runs < MIN_PAIRS:
        return Estimate(value, math.nan, math.nan, alpha)
    low, high = np.quantile(values, [alpha / 2, 1 - alpha / 2])
    return Estimate(value, float(low), float(high), alpha)
