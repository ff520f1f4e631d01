"""The result of an arm's search, and an estimate of how far it fell short of the arm's best setting.

A few noisy trials do not reach the peak. The distance to the peak differs from arm to arm, and could be mistaken for a
difference between the arms. Its size can be estimated from the trials: a Gaussian process is fitted to their scores,
and functions sampled from it show how far the peak may lie above the selected setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from harness.config.search import KnobRange
from harness.errors import RefusedError
from harness.plan.search_plan import SearchPlan
from harness.plan.tuning import digest, ended_trials
from harness.records import CellRecord
from harness.records.study import TrialRecord
from harness.records.sweep import TunedArm
from harness.search.trials import final_value

FloatArray: TypeAlias = NDArray[np.float64]

_CANDIDATES = 128
"""The number of points in the searched space at which sampled functions are evaluated, in addition to the trials."""
_DRAWS = 1000
"""The number of functions sampled from the mixture of processes."""
_LENGTHS = np.geomspace(0.2, 1, 5)
"""The length scales of the processes, in units of the width of the range."""
_AMPLITUDES = (0.5, 1, 2)
"""The standard deviations of the processes, in units of that of the trials' scores."""

_NEAR = 10
"""Scores within this number of standard errors of the best are kept, because they show how steep the peak is."""


def tuned_arm(plan: SearchPlan, home: Path) -> TunedArm:
    """Return the result of an arm's search, from its records. Raises RefusedError if no trial has a score."""
    most = plan.search.budget.trials or 0
    folder = plan.folder(home)
    ended = ended_trials(folder, most)
    objective = plan.objectives[0]
    scores = {
        trial.number: [
            100 * value
            for name in trial.cells
            if (value := final_value(CellRecord.at(folder / "cells" / name), objective)) is not None
        ]
        for trial in ended
        # A trial with the values of an earlier trial has no scores of its own.
        if trial.state == "complete" and trial.same_as is None
    }
    complete = [trial for trial in ended if trial.number in scores]
    if not complete:
        reasons = "; ".join(dict.fromkeys(trial.reason or trial.state for trial in ended))
        raise RefusedError("search.no_trial_scored", sweep=plan.sweep.name, n_trials=len(ended), reasons=reasons)
    best = max(complete, key=lambda trial: (fmean(scores[trial.number]), -trial.number))
    default = next((trial for trial in complete if trial.is_default), None)
    short = shortfall(
        plan.search.knobs, [trial.params for trial in complete], np.array([scores[t.number] for t in complete])
    )
    return TunedArm(
        digest=digest(plan),
        trial=best.number,
        values=best.params,
        search_pp=fmean(scores[best.number]),
        default_pp=None if default is None else fmean(scores[default.number]),
        complete=sum(trial.state == "complete" for trial in ended),
        generated_tokens=sum(trial.generated_tokens or 0 for trial in ended),
        at_end=_at_end(plan.search.knobs, best, complete),
        short_pp=short.mean,
        short_sd_pp=short.sd,
    )


def _at_end(knobs: Mapping[str, KnobRange], best: TrialRecord, trials: Sequence[TrialRecord]) -> list[str]:
    """Return the numeric knobs whose best value is the lowest or highest one that was tried."""
    found = []
    for knob in (knob for knob in best.params if not knobs[knob].choices):
        tried = [_number(trial.params[knob]) for trial in trials if knob in trial.params]
        if best.params[knob] in (min(tried), max(tried)):
            found.append(knob)
    return found


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


@dataclass(frozen=True)
class Shortfall:
    """The mean and standard deviation of how far the best setting of a range lies above the selected one."""

    mean: float
    sd: float


def shortfall(
    knobs: Mapping[str, KnobRange], settings: Sequence[Mapping[str, object]], scores: FloatArray
) -> Shortfall:
    """Estimate how far the setting with the best mean score is below the best possible one, in the unit of the scores.

    settings: the settings of the trials.
    scores: [n_trials, n_seeds], with at least 2 seeds.

    The posterior is a mixture of Gaussian processes over length scale and amplitude, weighted by likelihood (Matern 5/2
    with a flat mean; Rasmussen and Williams 2006, equations 2.25, 4.17). Scores below the median that are also far
    below the best are raised, because a setting at which training collapsed says little about the peak. Scores near the
    best are kept, even if most trials are better, because they show how steep the peak is.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    means = scores.mean(axis=1)
    picked = int(means.argmax())
    n = len(means)
    median = float(np.median(means))
    # The noise is first estimated without the lower half, whose collapsed trials would inflate it.
    level = min(median, float(means.max()) - _NEAR * math.sqrt(_noise_variance(scores[means >= median])))
    noise = _noise_variance(scores[means >= level])
    observed = np.maximum(means, level)
    observed = observed - observed.mean()
    spread = max(float(observed.std()), math.sqrt(noise))
    if spread == 0:  # all settings have equal scores, without any noise
        return Shortfall(0.0, 0.0)
    points = np.vstack([np.array([_coordinates(knobs, values) for values in settings]), _candidates(knobs)])
    # The second constant, large compared with the scores, represents the unknown flat mean.
    processes = [
        GaussianProcessRegressor(
            ConstantKernel((amplitude * spread) ** 2) * Matern(length, nu=2.5) + ConstantKernel((10 * spread) ** 2),
            alpha=noise + 1e-6 * spread**2,
            optimizer=None,
        ).fit(points[:n], observed)
        for length in _LENGTHS * math.sqrt(len(knobs))
        for amplitude in _AMPLITUDES
    ]
    logs = np.array([process.log_marginal_likelihood_value_ for process in processes])
    # The largest value is subtracted so that exp does not underflow for all of them.
    weights = np.exp(logs - logs.max())
    # The seed is fixed, so that the same records always give the same result.
    random = np.random.default_rng(0)
    drawn = []
    for share, process in zip(weights / weights.sum(), processes, strict=True):
        if count := round(_DRAWS * share):
            # `sample_y` would use a singular value decomposition of the covariance, which takes ten times as long.
            mean, covariance = process.predict(points, return_cov=True)
            # Without the added diagonal, the matrix may not be numerically positive definite.
            root = np.linalg.cholesky(covariance + 1e-8 * spread**2 * np.eye(len(mean)))
            functions = mean + random.standard_normal((count, len(mean))) @ root.T
            drawn.append(functions.max(axis=1) - functions[:, picked])
    left = np.concatenate(drawn)
    return Shortfall(float(left.mean()), float(left.std()))


def _noise_variance(scores: FloatArray) -> float:
    """Return the variance of a trial's mean score relative to the others, from scores [n_trials, n_seeds].

    An effect of a seed that is equal in all trials is not noise in the choice between them.
    """
    n_trials, n_seeds = scores.shape
    within = scores - scores.mean(axis=1, keepdims=True)
    if n_trials == 1:
        return float((within**2).sum() / (n_seeds - 1) / n_seeds)
    # These are the residuals of a two-way layout without interaction. They have (n_trials - 1) (n_seeds - 1) degrees of
    # freedom.
    rest = within - within.mean(axis=0, keepdims=True)
    return float((rest**2).sum() / ((n_trials - 1) * (n_seeds - 1)) / n_seeds)


def _coordinates(knobs: Mapping[str, KnobRange], values: Mapping[str, object]) -> list[float]:
    """Return a setting as a point.

    Ranges are scaled to [0, 1], and all categories have equal distances. A knob that was not sampled gets the value
    0.5.
    """
    point: list[float] = []
    for knob, searched in knobs.items():
        if searched.choices:
            # Each choice has a coordinate, scaled so that two different choices have distance 1, the width of a range.
            point += [math.sqrt(0.5) * (knob in values and values[knob] == choice) for choice in searched.choices]
        elif knob not in values:
            point.append(0.5)
        else:
            scale = math.log if searched.kind == "log" else float
            low, high, value = (scale(one) for one in (*searched.bounds, _number(values[knob])))
            point.append((value - low) / (high - low))
    return point


def _candidates(knobs: Mapping[str, KnobRange]) -> FloatArray:
    """Return points that fill the searched space evenly, from a Sobol sequence."""
    from scipy.stats import qmc

    points = []
    for shares in qmc.Sobol(len(knobs), scramble=False).random(_CANDIDATES):
        point: list[float] = []
        for share, searched in zip(shares, knobs.values(), strict=True):
            if searched.choices:
                chosen = int(share * len(searched.choices))
                point += [math.sqrt(0.5) * (chosen == place) for place in range(len(searched.choices))]
            else:
                point.append(float(share))
        points.append(point)
    return np.array(points)
