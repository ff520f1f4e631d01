"""Over-optimisation: the proxy reward that an arm trains on, the truth beside it, and the distance from the start.

Gao et al., arXiv:2210.10760: with growing KL to the starting policy the proxy keeps rising while the truth turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.measure.measurements import Measurement
from reports.statistics import FloatArray

KL, PROXY, TRUTH = "kl/sequence_start", "reward/reward_model", "reward/correct"

# The means of a single step's batch are noisy, so each point of a path is the mean of a stretch of steps.
STRETCHES = 20


@dataclass(frozen=True)
class Path:
    """Where training went: points [stretches] of equal shares of training, in its order.

    kl_nats: the KL of a completion to the starting policy, which need not grow. proxy_sd: the proxy reward in standard
    deviations of the reward model. correct: the share of right completions.
    """

    kl_nats: FloatArray
    proxy_sd: FloatArray
    correct: FloatArray


@dataclass(frozen=True)
class ArmPaths:
    """An arm's paths by seed, and their mean over seeds at the same share of training."""

    seeds: dict[int, Path]
    mean: Path


@dataclass(frozen=True)
class ProxyAndTruth:
    """The last stretch of an arm's mean path against its peak, the stretch with the most right completions.

    The maximum of noisy means lies above the true peak, so `correct_since_peak_pp` is never above 0. Whether a fall is
    more than noise shows in `n_overoptimised` of `n` seeds, in which the truth fell from the peak on and the proxy
    rose.
    """

    kl_nats: float
    proxy_sd: float
    correct_pp: float
    peak_kl_nats: float
    peak_correct_pp: float
    proxy_since_peak_sd: float
    correct_since_peak_pp: float
    n_overoptimised: int
    n: int


def arm_paths(cells: Sequence[Measurement]) -> ArmPaths | None:
    """The paths of an arm's finished cells; None if none recorded KL, proxy and truth."""
    recorded = {m.cell.seed: points for m in cells if len(points := _points(m))}
    if not recorded:
        return None
    stretches = min(STRETCHES, *map(len, recorded.values()))
    seeds = {
        seed: np.array([stretch.mean(axis=0) for stretch in np.array_split(points, stretches)])
        for seed, points in recorded.items()
    }
    mean = np.mean([*seeds.values()], axis=0)
    return ArmPaths({seed: Path(*path.T) for seed, path in seeds.items()}, Path(*mean.T))


def proxy_and_truth(cells: Sequence[Measurement]) -> ProxyAndTruth | None:
    """The summary of an arm's paths; None if it has none."""
    paths = arm_paths(cells)
    if paths is None:
        return None
    mean = paths.mean
    peak = int(mean.correct.argmax())
    return ProxyAndTruth(
        kl_nats=float(mean.kl_nats[-1]),
        proxy_sd=float(mean.proxy_sd[-1]),
        correct_pp=float(100 * mean.correct[-1]),
        peak_kl_nats=float(mean.kl_nats[peak]),
        peak_correct_pp=float(100 * mean.correct[peak]),
        proxy_since_peak_sd=float(mean.proxy_sd[-1] - mean.proxy_sd[peak]),
        correct_since_peak_pp=float(100 * (mean.correct[-1] - mean.correct[peak])),
        n_overoptimised=sum(
            bool(path.correct[-1] < path.correct[peak] and path.proxy_sd[-1] > path.proxy_sd[peak])
            for path in paths.seeds.values()
        ),
        n=len(paths.seeds),
    )


def _points(measurement: Measurement) -> FloatArray:
    """KL, proxy and truth [steps, 3] of the steps that recorded all three."""
    rows = np.column_stack([measurement.steps[key] for key in (KL, PROXY, TRUTH)])
    return rows[~np.isnan(rows).any(axis=1)]
