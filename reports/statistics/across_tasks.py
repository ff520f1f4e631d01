"""Arms over several tasks: the interquartile mean, and the probability that a run of one arm beats a run of another.

A run is one trained policy, evaluated on every task. Its scores on different tasks are correlated, so the unit of
replication is the run, not the task: intervals refer to new runs on the same tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.means import MIN_PAIRS, FloatArray, finite_table, interquartile_means, require_level

MIN_RUNS_FOR_IMPROVEMENT = 6
"""With fewer runs, an interval of this probability either loses its level or is too wide to be useful: in one of ten
sweeps, three runs win every comparison by chance.
"""

Table = Sequence[Sequence[float]] | FloatArray


@dataclass(frozen=True)
class Estimate:
    """A number with its interval at level 1 - `alpha`. The interval is NaN if there are too few runs or no spread."""

    value: float
    low: float
    high: float
    alpha: float


def interquartile_mean_over_tasks(scores: Table, alpha: float = 0.05) -> Estimate:
    """Return the interquartile mean of all runs on all tasks (Agarwal et al. 2108.13264), with a jackknife t interval.

    scores [n_runs, n_tasks]: a row is one trained policy, evaluated on every task. The mean is over the middle half of
    all scores, regardless of task, so all tasks must use the same scale, such as the fraction of correct answers.

    The jackknife leaves out one run with all its tasks. The interval is Student's t with n_runs - 1 degrees of freedom
    on the pseudo-values (Tukey 1958). It needs three runs. A bootstrap percentile interval from so few runs would be
    much too narrow.

    Raises ValueError for another shape or scores that are not finite.
    """
    from scipy.special import stdtrit

    require_level(alpha)
    table = finite_table("scores", scores, "[n_runs, n_tasks]")
    n = len(table)
    value = float(interquartile_means(table.ravel()))
    if n < MIN_PAIRS:
        return Estimate(value, math.nan, math.nan, alpha)
    without_one = np.array([interquartile_means(np.delete(table, run, axis=0).ravel()) for run in range(n)])
    # Jackknife pseudo-values: n theta - (n - 1) theta_without_i. Their standard error is that of the estimate.
    error = float((n * value - (n - 1) * without_one).std(ddof=1)) / math.sqrt(n)
    half_width = float(stdtrit(n - 1, 1 - alpha / 2)) * error if error > 0 else math.nan
    return Estimate(value, value - half_width, value + half_width, alpha)


def probability_of_improvement(treatment: Table, baseline: Table, alpha: float = 0.05) -> Estimate:
    """Return the probability that a run of the treatment beats a run of the baseline on a random task.

    treatment, baseline [n_runs, n_tasks]: the same tasks in the same order, and runs that are paired by position. On
    each task, the probability is the share of all n x n pairs of runs in which the treatment is higher; a tie counts
    half (the Mann-Whitney statistic). The result is the mean over tasks (Agarwal et al. 2108.13264). 0.5 means no
    difference. The probability does not say how large a difference is.

    The interval is Student's t with n - 1 degrees of freedom on the logit scale. Its variance is that of each run's
    share of wins, summed over the two runs of a pair. This holds for correlated arms and tasks (DeLong et al. 1988,
    Biometrics 44:837; Brunner & Munzel 2000 use it for independent ones). The variance of n x n independent comparisons
    is its lower bound, because runs that always win show no variance at all. The interval needs six runs.

    Raises ValueError for other shapes or scores that are not finite.
    """
    from scipy.special import expit, logit, stdtrit

    require_level(alpha)
    treated = finite_table("treatment", treatment, "[n_runs, n_tasks]")
    control = finite_table("baseline", baseline, "[n_runs, n_tasks]")
    if treated.shape != control.shape:
        raise ValueError(
            f"treatment is {list(treated.shape)} and baseline {list(control.shape)}: give the same runs and tasks"
        )
    wins = (1 + np.sign(treated[:, None] - control[None]).mean(axis=2)) / 2  # [n_runs, n_runs]
    n, value = len(wins), float(wins.mean())
    if n < MIN_RUNS_FOR_IMPROVEMENT:
        return Estimate(value, math.nan, math.nan, alpha)
    # Stay half a comparison away from 0 and 1, whose logits are infinite.
    inner = min(max(value, 0.5 / n**2), 1 - 0.5 / n**2)
    variance = float((wins.mean(axis=1) + wins.mean(axis=0)).var(ddof=1)) / n
    # Delta method: the logit's derivative at `inner` is 1 / (inner (1 - inner)).
    error = math.sqrt(max(variance, inner * (1 - inner) / n**2)) / (inner * (1 - inner))
    half_width = float(stdtrit(n - 1, 1 - alpha / 2)) * error
    return Estimate(value, float(expit(logit(inner) - half_width)), float(expit(logit(inner) + half_width)), alpha)
