"""The entropy law of every arm: per training seed and pooled, for the training reward and for each task's score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from reports.laws import (
    EntropyLaw,
    Forecast,
    FreeExponent,
    LawRefusedError,
    LawUncertainty,
    Run,
    fit_entropy_law,
    fit_free_exponent,
    forecast,
    law_uncertainty,
)
from reports.measurements import Measurement, Metric, finite
from reports.processes import each_in_processes
from reports.statistics import PairedComparison, compare_paired

if TYPE_CHECKING:
    from harness.records import SweepRecord

EntropyKind = Literal["full", "sampled"]
ENTROPY_KINDS: tuple[EntropyKind, ...] = ("full", "sampled")
REWARD = "reward/mean"

Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class Target:
    """What the law explains: the training reward (`task` is None), or a task's score in percent."""

    name: str
    task: str | None
    metric: str
    unit: Literal["reward", "pp"]


@dataclass(frozen=True)
class EntropyFit:
    """The law of one arm's runs: of one seed, or of all pooled (`seed` is None).

    `entropy`: over the vocabulary (full) or of the sampled tokens. `law` and `uncertainty` are None where `refused`
    says why; `exponent` and `forecast` can be refused by themselves. `interventions`: knobs of the arm that act on
    entropy, so that the law is not expected to hold. `temperature`: of the rollouts; at another than 1 the recorded
    entropy is not the law's. `ceiling_difference`: of a pooled fit, its seeds' ceilings minus the baseline's.
    """

    arm: str
    seed: int | None
    target: Target
    entropy: EntropyKind
    runs: dict[int, Run]
    law: EntropyLaw | None
    uncertainty: LawUncertainty | None
    refused: str
    exponent: FreeExponent | None
    exponent_refused: str
    forecast: Forecast | None
    forecast_refused: str
    interventions: list[str]
    temperature: float
    ceiling_difference: PairedComparison | None = None

    @property
    def has_ceiling(self) -> bool:
        """Whether the law has one: with a <= 0 the reward rises with the entropy, and H = 0 is its worst."""
        return self.law is not None and self.law.a > 0


def training_reward() -> Target:
    return Target("training reward", None, REWARD, "reward")


def targets(sweep: SweepRecord, metric: Metric) -> list[Target]:
    """The training reward, then the compared metric on each task."""
    return [training_reward(), *(Target(f"{metric.name} of {task}", task, metric.name, "pp") for task in sweep.tasks)]


def entropy_fits(
    sweep: SweepRecord, metric: Metric, measurements: Mapping[str, list[Measurement]], processes: int = 1
) -> list[EntropyFit]:
    """For each target and kind of entropy that was recorded: every arm pooled, then its seeds."""
    found = [
        _ArmRuns(arm, target, kind, cells[0].cell.spec, runs)
        for target in targets(sweep, metric)
        for kind in ENTROPY_KINDS
        for arm, cells in measurements.items()
        if (runs := {m.cell.seed: run for m in cells if len(run := _run(m, target, kind))})
    ]
    fits = each_in_processes(_fits_of_arm, found, processes)
    baselines = {(pooled.target, pooled.entropy): seeds for pooled, *seeds in fits if pooled.arm == sweep.baseline}
    return [
        fit
        for pooled, *seeds in fits
        for fit in (
            _with_ceiling_difference(pooled, seeds, baselines.get((pooled.target, pooled.entropy), []), sweep),
            *seeds,
        )
    ]


def entropy_interventions(spec: Mapping[str, Any]) -> list[str]:
    """The knobs of a resolved spec that act on entropy: a raised upper clip, an entropy bonus, a covariance method."""
    objective = spec.get("objective") or {}
    rule, select, entropy = (objective.get(section) or {} for section in ("rule", "select", "entropy"))
    found = []
    if (rule.get("clip_high") or 0) > (rule.get("clip_low") or 0):
        found.append(f"clip_high={rule['clip_high']:g}")
    if select.get("type") in ("clip_cov", "kl_cov"):
        found.append(str(select["type"]))
    if entropy.get("bonus"):
        found.append(f"entropy.bonus={entropy['bonus']:g}")
    adaptive = (entropy.get("adaptive") or {}).get("type", "none")
    if adaptive != "none":
        found.append(f"entropy.adaptive={adaptive}")
    return found


@dataclass(frozen=True)
class _ArmRuns:
    """What a law is fitted to: `runs` of one arm by seed; `spec` of its cells."""

    arm: str
    target: Target
    entropy: EntropyKind
    spec: Mapping[str, Any]
    runs: dict[int, Run]


def _fits_of_arm(arm: _ArmRuns) -> list[EntropyFit]:
    """The fit of all runs, then those of each."""
    return [_fit(arm, None, arm.runs), *(_fit(arm, seed, {seed: run}) for seed, run in arm.runs.items())]


def _run(measurement: Measurement, target: Target, kind: EntropyKind) -> Run:
    """The steps at which both the entropy and the target are known.

    The entropy is that of the policy before the step's update, as is the training reward; evaluations follow it.
    """
    steps = measurement.steps
    step, entropy = steps["step"], steps[f"entropy/{kind}"]
    if target.task is None:
        reward = steps[REWARD]
    else:
        scores = {
            row["step"]: score
            for row in measurement.scores
            if row["task"] == target.task and (score := finite(row["metrics"].get(target.metric))) is not None
        }
        reward = np.array([100 * scores.get(int(place), math.nan) for place in step])
    known = ~np.isnan(entropy) & ~np.isnan(reward)
    return Run(step[known], entropy[known], reward[known])


def _fit(of: _ArmRuns, seed: int | None, runs: dict[int, Run]) -> EntropyFit:
    entropy, reward = (np.concatenate([getattr(run, name) for run in runs.values()]) for name in ("entropy", "reward"))
    parts = [*runs.values()]
    law, refused = _or_reason(lambda: fit_entropy_law(entropy, reward))
    uncertainty, _ = _or_reason(lambda: law_uncertainty(parts))
    exponent, exponent_refused = _or_reason(lambda: fit_free_exponent(entropy, reward))
    forecasted, forecast_refused = _or_reason(lambda: forecast(parts))
    return EntropyFit(
        arm=of.arm,
        seed=seed,
        target=of.target,
        entropy=of.entropy,
        runs=runs,
        law=law,
        uncertainty=uncertainty,
        refused=refused,
        exponent=exponent,
        exponent_refused=exponent_refused,
        forecast=forecasted,
        forecast_refused=forecast_refused,
        interventions=entropy_interventions(of.spec),
        temperature=float((of.spec.get("rollout") or {}).get("temperature", 1.0)),
    )


def _or_reason(fit: Callable[[], Fitted]) -> tuple[Fitted | None, str]:
    try:
        return fit(), ""
    except LawRefusedError as error:
        return None, str(error)


def _with_ceiling_difference(
    fit: EntropyFit, seeds: Sequence[EntropyFit], baseline: Sequence[EntropyFit], sweep: SweepRecord
) -> EntropyFit:
    """Ceilings of the arm's seeds against those of the baseline's. Also of seeds with a below 0, whose law has a floor
    at H = 0: to leave them out would choose by the outcome."""
    own, other = ({f.seed: f.law.ceiling for f in fits if f.law is not None} for fits in (seeds, baseline))
    shared = [seed for seed in own if seed in other]
    if fit.arm == sweep.baseline or not fit.has_ceiling or not shared:
        return fit
    difference = compare_paired([own[seed] for seed in shared], [other[seed] for seed in shared], sweep.alpha)
    return replace(fit, ceiling_difference=difference)
