"""Over-optimisation: an arm's proxy reward, next to the true reward and the distance from the starting policy.

With growing KL to the starting policy, the proxy keeps rising while the true reward turns down (Gao et al.,
arXiv:2210.10760). A pairwise judge gives no absolute score, so its verdicts at the start of training are compared with
those at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from reports.measure.measurements import Measurement, mean_of
from reports.report import JudgeAndTruth, JudgeReplies, JudgeVerdicts, ProxyAndTruth
from reports.statistics import FloatArray

KL, PROXY, TRUTH = "kl/sequence_start", "reward/reward_model", "reward/correct"

# The means of one step's batch are noisy, so each point of a path averages several consecutive steps.
STRETCHES = 20


@dataclass(frozen=True)
class Path:
    """The path of training: arrays [stretches], each point averaged over an equal share of the steps, in order."""

    kl_nats: FloatArray
    """The KL of a completion to the starting policy. It need not increase."""
    proxy_sd: FloatArray
    """The proxy reward in standard deviations of the reward model's scores."""
    correct: FloatArray
    """The share of correct completions."""


@dataclass(frozen=True)
class ArmPaths:
    """An arm's path for each seed, and their mean at equal shares of training."""

    seeds: dict[int, Path]
    mean: Path


def arm_paths(cells: Sequence[Measurement]) -> ArmPaths | None:
    """Compute the paths of an arm's finished cells; None if no cell recorded KL, proxy and true reward."""
    recorded = {m.cell.seed: points for m in cells if len(points := _points(m))}
    if not recorded:
        return None
    # All seeds get the same number of stretches, so that the mean is taken at equal shares of training.
    stretches = min(STRETCHES, *map(len, recorded.values()))
    seeds = {
        seed: np.array([stretch.mean(axis=0) for stretch in np.array_split(points, stretches)])
        for seed, points in recorded.items()
    }
    mean = np.mean([*seeds.values()], axis=0)
    return ArmPaths({seed: Path(*path.T) for seed, path in seeds.items()}, Path(*mean.T))


def proxy_and_truth(cells: Sequence[Measurement]) -> ProxyAndTruth | None:
    """Summarise an arm's paths; None if it has no paths."""
    paths = arm_paths(cells)
    if paths is None:
        return None
    mean = paths.mean
    # The peak of the mean path is used for all seeds below.
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


def judge_and_truth(cells: Sequence[Measurement]) -> JudgeAndTruth | None:
    """Average the pairwise judge's verdicts over the first and the last tenth of training; None if there was no judge.

    A tenth is rounded up to whole steps.
    """
    judged = [cell for cell in cells if len(cell.steps.known("judge/tie_frac"))]
    if not judged:
        return None
    columns = {name: f"judge/{name}" for name in JudgeVerdicts.model_fields} | {"correct": TRUTH}

    def tenth(of_ends: Callable[[int], slice]) -> JudgeVerdicts:
        return JudgeVerdicts(
            **{
                name: mean_of(_mean(cell.steps[key][of_ends(-(-cell.steps.length // 10))]) for cell in judged)
                for name, key in columns.items()
            }
        )

    return JudgeAndTruth(start=tenth(lambda steps: slice(None, steps)), end=tenth(lambda steps: slice(-steps, None)))


def _mean(values: FloatArray) -> float | None:
    """Return the mean of the recorded values, or None if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def judge_replies(cells: Sequence[Measurement]) -> JudgeReplies | None:
    """Summarise the judge's replies over an arm's cells; None if no judge graded their rollouts."""
    judged = [cell for cell in cells if len(cell.steps.known("judge/questions"))]
    if not judged:
        return None

    def total(key: str) -> float | None:
        return mean_of(float(cell.steps.known(f"judge/{key}").sum()) for cell in judged)

    def mean(key: str) -> float | None:
        return mean_of(cell.step_mean(key) for cell in judged)

    return JudgeReplies(
        questions=total("questions"),
        prompt_tokens=total("prompt_tokens"),
        completion_tokens=total("completion_tokens"),
        undecided_frac=mean("judge/undecided_frac"),
        correct=mean(TRUTH),
        rule_correct=mean("judge/rule_correct"),
        agreement_frac=mean("judge/agreement_frac"),
        kappa=mean("judge/kappa"),
    )


def _points(measurement: Measurement) -> FloatArray:
    """Return KL, proxy and true reward [steps, 3] of the steps that recorded all three."""
    rows = np.column_stack([measurement.steps[key] for key in (KL, PROXY, TRUTH)])
    return rows[~np.isnan(rows).any(axis=1)]
