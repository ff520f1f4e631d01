"""The variance budget of a contrast: how much of its noise comes from training seeds, evaluation samples and problems,
and what pairing did to it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.measure import Analysis, derived
from reports.measure.contrasts import Contrast
from reports.measure.measurements import Measurement
from reports.statistics import MIN_PAIRS, FloatArray, Part, VarianceComponents, components

MEANS_OF_SAMPLES = ("pass@1", "avg@n")
"""The metrics whose score of a problem is the mean of its samples, so that these show its sampling noise."""

PART_NAMES = {
    "seeds": "training seeds",
    "seeds_x_problems": "seed x problem",
    "sampling": "evaluation samples",
    "problems": "problems",
}
"""The parts of a variance in words."""


@dataclass(frozen=True)
class SampleGrid:
    """Which samples of a cell's final evaluation are right. problems [n_problems]: sorted. right [n_problems,
    n_samples]: the samples in the order of their numbers, which name their noise."""

    problems: list[str]
    right: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class VarianceBudget:
    """The parts of a contrast's variance, in squared percentage points.

    components: None if the records do not show them, and `refused` says why. covariance: of the arms' scores over
    seeds. shared_noise: the part of it that is evaluation noise, since samples of one number draw the same noise in
    both arms; None with one sample of a problem, which does not show it.
    """

    components: VarianceComponents | None
    covariance: float | None = None
    shared_noise: float | None = None
    refused: str = ""

    @property
    def shared_noise_share(self) -> float | None:
        """The share of the arms' covariance that is shared evaluation noise; None if they do not move together."""
        if self.covariance is None or self.shared_noise is None or self.covariance <= 0:
            return None
        return min(1.0, max(0.0, self.shared_noise / self.covariance))


@derived
def variance_budgets(analysis: Analysis) -> list[VarianceBudget]:
    """The budget of every contrast, in their order."""
    grids = {
        arm: {m.cell.seed: grid for m in cells if (grid := sample_grid(m)) is not None}
        for arm, cells in analysis.measurements.items()
    }
    return [_budget(contrast, analysis.metric.name, grids) for contrast in analysis.contrasts]


def _budget(contrast: Contrast, metric: str, grids: dict[str, dict[int, SampleGrid]]) -> VarianceBudget:
    if len(contrast.seeds) < MIN_PAIRS or contrast.comparison is None:
        return VarianceBudget(None, refused=f"it takes {MIN_PAIRS} pairs")
    if contrast.over_problems:
        return VarianceBudget(None, refused="one checkpoint is evaluated, and nothing is trained")
    if metric not in MEANS_OF_SAMPLES:
        return VarianceBudget(None, refused=f"{metric} is no mean of samples")
    arms = [[grids[arm].get(seed) for seed in contrast.seeds] for arm in (contrast.arm, contrast.baseline)]
    known = [grid for arm in arms for grid in arm if grid is not None]
    if len(known) < 2 * len(contrast.seeds) or any(grid.problems != known[0].problems for grid in known):
        return VarianceBudget(None, refused="not every run kept equally many samples of the same problems")
    if len(known[0].problems) < 2:
        return VarianceBudget(None, refused="it takes 2 problems")
    if math.isnan(contrast.comparison.sd):
        return VarianceBudget(None, refused=contrast.comparison.note)
    # A run that was evaluated with more samples than another has the other's among them.
    n_samples = min(grid.right.shape[1] for grid in known)
    treated, control = (
        np.array([100.0 * grid.right[:, :n_samples] for grid in arm if grid is not None]) for arm in arms
    )
    return budget_of(treated, control, contrast.comparison.alpha)


def budget_of(treated: FloatArray, control: FloatArray, alpha: float) -> VarianceBudget:
    """The budget of two arms from their samples [n_seeds, n_problems, n_samples], paired in every axis."""
    n_samples = treated.shape[2]
    drawn = treated - control
    differences = drawn.mean(axis=2)
    if not np.ptp(differences, axis=0).any():
        return VarianceBudget(None, refused="no problem's difference varies over seeds")
    scores = treated.mean(axis=(1, 2)), control.mean(axis=(1, 2))
    covariance = float(np.cov(*scores)[0, 1])
    if n_samples == 1:
        return VarianceBudget(components(differences, alpha=alpha), covariance)
    noise, own, other = (x.var(axis=2, ddof=1) / n_samples for x in (drawn, treated, control))
    # The covariance of a cell's two means; the mean over problems averages independent noise.
    shared = float(((own + other - noise) / 2).mean()) / treated.shape[1]
    split = components(differences, noise, n_samples=n_samples, alpha=alpha)
    return VarianceBudget(split, covariance, shared)


def sample_grid(measurement: Measurement) -> SampleGrid | None:
    """The samples of the final evaluation on the compared task; None if the cell kept none, or not equally many of
    every problem."""
    table = measurement.final_samples
    if table is None or table.num_rows == 0 or not {"problem_id", "sample", "correct"} <= set(table.column_names):
        return None
    coded = table["problem_id"].combine_chunks().dictionary_encode()
    names = [str(problem) for problem in coded.dictionary.to_pylist()]
    place = np.argsort(np.argsort(names))[coded.indices.to_numpy(zero_copy_only=False)]
    counts = np.bincount(place)
    if counts.min() != counts.max():
        return None
    order = np.lexsort((table["sample"].to_numpy(), place))
    right = table["correct"].to_numpy()[order].reshape(len(names), -1)
    return SampleGrid(sorted(names), right)


def variance_row(budget: VarianceBudget) -> dict[str, Any]:
    """What report.json says of a contrast's variance: for these problems, as its verdict is, and for new ones.

    Of each part: sd_pp, what it adds to the standard error of the mean difference, and its share of the squared error,
    both with their intervals. error_pp: the standard error in full.
    """
    found = budget.components
    row: dict[str, Any] = {"refused": budget.refused or None, "shared_noise_share": budget.shared_noise_share}
    if found is None:
        return row
    row |= {"level": 1 - found.alpha, "n_seeds": found.n_seeds, "n_problems": found.n_problems}
    row |= {"n_samples": found.n_samples, "sampling_known": found.sampling_known}
    for name, new_problems in (("these_problems", False), ("new_problems", True)):
        error = found.error_of_mean(new_problems=new_problems)
        parts = {part: _part_row(value) for part, value in found.parts_of_mean(new_problems=new_problems).items()}
        row[name] = {**_with_ends("error_pp", asdict(error)), "parts": parts}
    return row


def _part_row(part: Part) -> dict[str, float]:
    return {**_with_ends("sd_pp", asdict(part.sd)), **_with_ends("share", asdict(part.share))}


def _with_ends(name: str, interval: dict[str, float]) -> dict[str, float]:
    """`sd_pp`, `sd_low_pp`, `sd_high_pp` of an interval."""
    stem, unit = (name.removesuffix("_pp"), "_pp") if name.endswith("_pp") else (name, "")
    return {name: interval["value"], f"{stem}_low{unit}": interval["low"], f"{stem}_high{unit}": interval["high"]}
