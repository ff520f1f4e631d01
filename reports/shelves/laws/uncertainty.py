"""The uncertainty of a fitted law: a jackknife over complete runs or, for a single run, over blocks of steps.

The steps of a run are autocorrelated, so naive standard errors are far too small. The jackknife leaves out units that
vary independently: runs or, if there is only one, blocks of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.errors import InvalidError
from reports.shelves.laws.entropy import (
    EntropyRun,
    FloatArray,
    FreeExponent,
    LawRefusedError,
    Numbers,
    fit_entropy_law,
    law_design,
)

LEAST_INFORMATION = 1e-12
"""The smallest share of information that must remain after leaving out a run or a block, for every combination of
parameters.

The share is 0, apart from rounding errors, if the remaining points do not determine the law.
"""


class LawInterval(NamedTuple):
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half_width: float) -> LawInterval:
        return cls(value, value - half_width, value + half_width)


@dataclass(frozen=True)
class Jackknife:
    """How fitted parameters change when each unit is left out in turn."""

    changes: FloatArray
    """[n_units, p] the change of each parameter."""
    df: int
    """The degrees of freedom of Student's t."""
    block_points: int | None
    """The number of consecutive points left out together; None if complete runs were left out."""

    @property
    def covariance(self) -> FloatArray:
        """The covariance of the parameters [p, p]."""
        n = len(self.changes)
        return np.asarray((n - 1) / n * self.changes.T @ self.changes, dtype=np.float64)

    def minus(self, other: Jackknife) -> Jackknife:
        """Return the jackknife of the difference between two fits to runs of the same seeds, in the same order.

        A seed is left out of both fits at once, so that what they share cancels. Raises ValueError if blocks were left
        out, or if the numbers of runs differ.
        """
        if self.block_points is not None or other.block_points is not None or len(self.changes) != len(other.changes):
            raise InvalidError("reports.shelves.laws.runs_do_not_pair")
        return Jackknife(self.changes - other.changes, self.df, None)

    def half_widths(self, gradients: FloatArray, alpha: float = 0.05) -> FloatArray:
        """Return half-widths [n] of the intervals of n functions of the parameters, given their gradients [n, p]."""
        from scipy.special import stdtrit

        variances = np.einsum("ni,ij,nj->n", gradients, self.covariance, gradients)
        return np.asarray(stdtrit(self.df, 1 - alpha / 2) * np.sqrt(variances), dtype=np.float64)


def jackknife(jacobian: FloatArray, residuals: FloatArray, run_lengths: Sequence[int]) -> Jackknife:
    """Compute the jackknife of a least-squares fit to the points of one or more consecutive runs.

    jacobian [n_points, p]: derivatives of the fitted values by the parameters.
    residuals [n_points]: observed minus fitted values.
    run_lengths: the number of points of each run.

    Each fit without a run is one Gauss-Newton step away from the fit to all points. This is exact for a linear law (the
    estimator CR3 of Cameron and Miller 2015, J. Hum. Resour. 50:317). Student's t has one degree of freedom fewer than
    there are runs.

    A single run is cut into blocks, whose length follows Künsch's rule for the residuals (1989, Ann. Statist. 17:1217).
    Then t has p degrees of freedom fewer than there are blocks. Such intervals leave out the variance between seeds.

    Raises LawRefusedError if the points that remain without some run or block do not determine the law.
    """
    n_points, n_parameters = jacobian.shape
    if len(run_lengths) > 1:
        ends, df, block_points = np.cumsum(run_lengths)[:-1], len(run_lengths) - 1, None
    else:
        block_points = min(block_length(residuals), max(1, n_points // (n_parameters + 2)))
        n_blocks = n_points // block_points
        ends, df = np.linspace(0, n_points, n_blocks + 1).round().astype(int)[1:-1], n_blocks - n_parameters
    starts = np.concatenate([[0], ends]).astype(np.intp)
    # In the coordinates of the singular vectors, the Gram matrix of all points is the identity, and each unit subtracts
    # its share. That leaves one small matrix per unit, regardless of the number of points.
    left, scales, right = np.linalg.svd(jacobian, full_matrices=False)
    pulls = left * residuals[:, None]
    kept = np.eye(n_parameters) - np.add.reduceat(left[:, :, None] * left[:, None, :], starts)
    kept_pulls = pulls.sum(axis=0) - np.add.reduceat(pulls, starts)
    is_flat = scales[-1] <= np.finfo(np.float64).eps * n_points * scales[0]
    if is_flat or np.linalg.eigvalsh(kept).min() < LEAST_INFORMATION:
        unit = "run" if block_points is None else "block of steps"
        raise LawRefusedError("reports.shelves.laws.law_hangs_on_one_unit", unit=unit)
    changes = np.linalg.solve(kept, kept_pulls[:, :, None])[:, :, 0] / scales @ right
    return Jackknife(changes, df, block_points)


@dataclass(frozen=True)
class LawUncertainty:
    """The uncertainty of the entropy law of one run, or of several runs pooled."""

    parameters: Jackknife
    """The jackknife of the parameters -a exp(reference_nats) and b."""
    reference_nats: float

    def half_widths(self, entropy: Numbers, alpha: float = 0.05) -> FloatArray:
        """Return half-widths [n] of the intervals of the law's line at `entropy` [n], at 0 that of the ceiling."""
        return self.parameters.half_widths(
            law_design(np.asarray(entropy, dtype=np.float64), self.reference_nats), alpha
        )

    def half_width_a(self, alpha: float = 0.05) -> float:
        """Return the half-width of the interval of a."""
        return float(self.parameters.half_widths(np.array([[1.0, 0.0]]), alpha)[0]) * math.exp(-self.reference_nats)

    def half_width_b(self, alpha: float = 0.05) -> float:
        """Return the half-width of the interval of b."""
        return float(self.parameters.half_widths(np.array([[0.0, 1.0]]), alpha)[0])


def law_uncertainty(runs: Sequence[EntropyRun]) -> LawUncertainty:
    """Compute the jackknife of the entropy law of all runs pooled.

    Raises LawRefusedError, like `jackknife` and `fit_entropy_law`.
    """
    entropy, reward = pooled(runs)
    law = fit_entropy_law(entropy, reward)
    reference = float(entropy.max())
    residuals = reward - law.predict(entropy)
    return LawUncertainty(jackknife(law_design(entropy, reference), residuals, [*map(len, runs)]), reference)


@dataclass(frozen=True)
class FreeExponentUncertainty:
    """Half-widths of the intervals of the exponent and the ceiling, at the same level."""

    exponent: float
    ceiling: float


def free_exponent_uncertainty(
    runs: Sequence[EntropyRun], fitted: FreeExponent, alpha: float = 0.05
) -> FreeExponentUncertainty:
    """Compute the jackknife of the law with a free exponent, fitted to all runs pooled.

    In simulations with 3, 6, 10 and 24 runs, with fixed or varying parameters, the exponent's nominal 95% interval
    covers the truth 92 to 97% of the time (`benchmarks/results/calibration.md`); with a single run, also 92 to 97%.
    Raises LawRefusedError, like `jackknife`.
    """
    entropy, reward = pooled(runs)
    found = jackknife(fitted.jacobian(entropy), reward - fitted.predict(entropy), [*map(len, runs)])
    gradients = np.concatenate([[[0.0, 0.0, 1.0]], fitted.jacobian(np.zeros(1))])
    exponent, ceiling = found.half_widths(gradients, alpha)
    return FreeExponentUncertainty(float(exponent), float(ceiling))


def pooled(runs: Sequence[EntropyRun]) -> tuple[FloatArray, FloatArray]:
    """Return the entropies and the rewards of all runs, concatenated."""
    return np.concatenate([run.entropy for run in runs]), np.concatenate([run.reward for run in runs])


def block_length(residuals: FloatArray) -> int:
    """Return Künsch's block length, taking the residuals [n] as AR(1); at most a quarter of the points."""
    n = len(residuals)
    centered = residuals - residuals.mean()
    total = float(centered @ centered)
    correlation = float(centered[1:] @ centered[:-1]) / total if total > 0 else 0.0
    # The estimate is too small by about (1 + 3 rho) / n (Kendall 1954, Biometrika 41:403).
    correlation = min(0.95, max(0.0, correlation + (1 + 3 * correlation) / n))
    best: float = (math.sqrt(6) * correlation / (1 - correlation**2)) ** (2 / 3) * n ** (1 / 3)
    return max(1, min(n // 4, round(best)))
