"""The variance budget of a contrast: how much of its noise comes from training seeds, evaluation samples and problems.

It also shows how much pairing reduced the noise. A contrast is a weighted sum of arms: two arms, or every arm in an
effect of a factorial design.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harness.words import said
from reports.measure import Analysis, derived
from reports.measure.contrasts import Contrast
from reports.measure.interactions import declared_of, effects_of
from reports.measure.measurements import Measurement
from reports.report import ErrorBudget, Share, Variance
from reports.statistics import MIN_PAIRS, FloatArray, VarianceComponents, components, components_of_problems

MEANS_OF_SAMPLES = ("pass@1", "avg@n")
"""Metrics for which a problem's score is the mean of its samples, which then show the sampling noise."""

PART_NAMES = {
    "seeds": "training seeds",
    "seeds_x_problems": "seed x problem",
    "sampling": "evaluation samples",
    "problems": "problems",
}
"""The names of the variance components in prose."""


@dataclass(frozen=True)
class SampleGrid:
    """The graded samples of a cell's final evaluation, as an array."""

    problems: list[str]
    """[n_problems] sorted."""
    right: npt.NDArray[np.bool_]
    """[n_problems, n_samples] whether each sample is correct. Equal sample numbers share their noise across cells."""


@dataclass(frozen=True)
class VarianceBudget:
    """The parts of a contrast's variance, in squared percentage points."""

    components: VarianceComponents | None
    """None if the records do not determine the components. `refused` then says why."""
    covariance: float | None = None
    """The covariance over seeds between the two sides of the contrast; None if nothing is trained.

    The two sides are the scores of two arms, or of two levels of a knob.
    """
    shared_noise: float | None = None
    """The part of the covariance that is evaluation noise; None if unknown, as with one sample per problem.

    Samples with the same number have the same noise in all arms.
    """
    refused: str = ""

    @property
    def shared_noise_share(self) -> float | None:
        """The share of the covariance that is shared evaluation noise, in [0, 1]; None if unknown or not positive."""
        if self.covariance is None or self.shared_noise is None or self.covariance <= 0:
            return None
        return min(1.0, max(0.0, self.shared_noise / self.covariance))


@derived
def variance_budgets(analysis: Analysis) -> list[VarianceBudget]:
    """Compute the budget of every arm's contrast, in the order of `contrasts`."""
    return [_budget(contrast, analysis) for contrast in analysis.contrasts]


@derived
def effect_budgets(analysis: Analysis) -> list[VarianceBudget]:
    """Compute the budget of every effect of a factorial, in the order of the effects; [] for other sweeps."""
    return [_budget(effect.contrast, analysis) for effect in effects_of(analysis)]


def declared_budgets(analysis: Analysis) -> list[tuple[Contrast, VarianceBudget]]:
    """Return the declared contrasts, each with its budget."""
    return [*zip(declared_of(analysis), effect_budgets(analysis) or variance_budgets(analysis), strict=True)]


def _budget(contrast: Contrast, analysis: Analysis) -> VarianceBudget:
    """Compute the budget of one contrast, or say why the records do not determine it."""
    if contrast.comparison is None or contrast.comparison.n_pairs < MIN_PAIRS:
        return VarianceBudget(None, refused=f"it takes {MIN_PAIRS} pairs")
    if analysis.metric.name not in MEANS_OF_SAMPLES:
        return VarianceBudget(None, refused=said("reports.no_mean_samples", name=analysis.metric.name))
    measured = {arm: {m.cell.seed: m for m in analysis.measurements[arm]} for arm in contrast.weights}
    grids = {arm: [sample_grid(cells[seed]) for seed in contrast.seeds] for arm, cells in measured.items()}
    known = [grid for arm in grids.values() for grid in arm if grid is not None]
    wanted = len(grids) * len(contrast.seeds)
    if len(known) < wanted or any(grid.problems != known[0].problems for grid in known):
        return VarianceBudget(None, refused=said("reports.not_every_run_kept"))
    if len(known[0].problems) < 2:
        return VarianceBudget(None, refused="it takes 2 problems")
    if math.isnan(contrast.comparison.sd):
        return VarianceBudget(None, refused=contrast.comparison.note)
    # Samples are numbered from 0, so the first n_samples are those that all runs have in common.
    n_samples = min(grid.right.shape[1] for grid in known)
    samples = {
        arm: np.array([100.0 * grid.right[:, :n_samples] for grid in some if grid is not None])
        for arm, some in grids.items()
    }
    return budget_of(samples, contrast.weights, contrast.comparison.alpha, one_checkpoint=contrast.over_problems)


def budget_of(
    samples: Mapping[str, FloatArray], weights: Mapping[str, float], alpha: float, *, one_checkpoint: bool = False
) -> VarianceBudget:
    """Compute the budget of a weighted sum of arms.

    samples: by arm, [n_seeds, n_problems, n_samples], paired along every axis.
    weights: by arm, positive for the added side and negative for the subtracted side.
    one_checkpoint: True if the arms evaluate the same weights, so that seeds vary only the sampling.
    """
    added, subtracted = (_side(samples, weights, sign) for sign in (1, -1))
    drawn = added - subtracted
    n_samples = drawn.shape[2]
    if one_checkpoint:
        if n_samples * len(drawn) == 1:
            return VarianceBudget(None, refused=said("reports.one_sample_problem_does"))
        if not np.ptp(drawn):
            return VarianceBudget(None, refused=said("reports.every_samples_difference_same"))
        return VarianceBudget(components_of_problems(drawn, alpha=alpha))
    differences = drawn.mean(axis=2)
    if not np.ptp(differences, axis=0).any():
        return VarianceBudget(None, refused=said("reports.no_problems_difference_varies"))
    covariance = float(np.cov(added.mean(axis=(1, 2)), subtracted.mean(axis=(1, 2)))[0, 1])
    if n_samples == 1:
        return VarianceBudget(components(differences, alpha=alpha), covariance)
    noise, own, other = (x.var(axis=2, ddof=1) / n_samples for x in (drawn, added, subtracted))
    # cov(a, b) = (var a + var b - var(a - b)) / 2, within a seed and a problem. Noise is independent between problems,
    # so averaging over problems divides the covariance by their number.
    shared = float(((own + other - noise) / 2).mean()) / drawn.shape[1]
    split = components(differences, noise, n_samples=n_samples, alpha=alpha)
    return VarianceBudget(split, covariance, shared)


def _side(samples: Mapping[str, FloatArray], weights: Mapping[str, float], sign: int) -> FloatArray:
    """Return the weighted sum of the arms with positive weights (sign 1) or negative weights (sign -1)."""
    chosen = [abs(weight) * samples[arm] for arm, weight in weights.items() if sign * weight > 0]
    total: FloatArray = np.sum(chosen, axis=0)
    return total


def sample_grid(measurement: Measurement) -> SampleGrid | None:
    """Return the samples of the final evaluation on the compared task.

    None if the cell kept none, or if problems have different numbers of samples.
    """
    samples = measurement.final_samples
    if samples is None or (right := samples.grid) is None:
        return None
    problems, order = _in_order(samples.problems)
    return SampleGrid(problems, right[order])


@lru_cache(maxsize=8)
def _in_order(problems: tuple[str, ...]) -> tuple[list[str], npt.NDArray[np.intp]]:
    """Sort the problems, and return each one's former position. Cached, because cells evaluate the same problems."""
    order = sorted(range(len(problems)), key=problems.__getitem__)
    return [problems[place] for place in order], np.array(order)


def variance_of(budget: VarianceBudget) -> Variance:
    """Build the variance entry of report.json: for these problems, as in the verdict, and for new problems."""
    found = budget.components
    known = {"refused": budget.refused or None, "shared_noise_share": budget.shared_noise_share}
    if found is None:
        return Variance(**known)
    return Variance(
        **known,
        level=1 - found.alpha,
        n_seeds=found.n_seeds,
        n_problems=found.n_problems,
        n_samples=found.n_samples,
        sampling_known=found.sampling_known,
        these_problems=_error_budget(found, new_problems=False),
        new_problems=_error_budget(found, new_problems=True),
    )


def _error_budget(found: VarianceComponents, *, new_problems: bool) -> ErrorBudget:
    error, parts = found.error_of_mean(new_problems=new_problems), found.parts_of_mean(new_problems=new_problems)
    return ErrorBudget(
        error_pp=error.value,
        error_low_pp=error.low,
        error_high_pp=error.high,
        parts={
            name: Share(
                sd_pp=part.sd.value,
                sd_low_pp=part.sd.low,
                sd_high_pp=part.sd.high,
                share=part.share.value,
                share_low=part.share.low,
                share_high=part.share.high,
            )
            for name, part in parts.items()
        },
    )
