"""The entropy law of every arm, per seed and pooled: training reward and scores against entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from reports.measure import Analysis, derived, remember
from reports.measure.measurements import Measurement, finite
from reports.processes import each_in_processes
from reports.shelves.laws import (
    EntropyLaw,
    EntropyRun,
    Forecast,
    FreeExponent,
    FreeExponentUncertainty,
    LawInterval,
    LawRefusedError,
    LawUncertainty,
    fit_entropy_law,
    fit_free_exponent,
    forecast,
    free_exponent_uncertainty,
    law_uncertainty,
    pooled,
)
from reports.statistics import PairedComparison, compare_paired

if TYPE_CHECKING:
    from harness.records import SweepRecord

EntropyKind = Literal["full", "sampled"]
ENTROPY_KINDS: tuple[EntropyKind, ...] = ("full", "sampled")
REWARD = "reward/mean"

Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class Target:
    """The quantity that the entropy law explains: the training reward (task is None), or a task's score in percent."""

    name: str
    task: str | None
    metric: str
    unit: Literal["reward", "pp"]
    before: float | None = None
    """The score before training, if it was measured."""


@dataclass(frozen=True)
class EntropyFit:
    """The entropy law of an arm, fitted to one seed or to all seeds pooled (seed is None).

    `exponent` and `forecast` can be refused independently of `law`.
    """

    arm: str
    seed: int | None
    target: Target
    entropy: EntropyKind
    """Computed over the vocabulary ("full"), or from the sampled tokens."""
    runs: dict[int, EntropyRun]
    law: EntropyLaw | None
    """None if the fit is refused, like `uncertainty`; `refused` then says why."""
    uncertainty: LawUncertainty | None
    refused: str
    exponent: FreeExponent | None
    exponent_uncertainty: FreeExponentUncertainty | None
    exponent_refused: str
    forecast: Forecast | None
    forecast_refused: str
    interventions: list[str]
    """Knobs of the arm that act on entropy, so that the law is not expected to hold."""
    temperature: float
    """The temperature of the rollouts. At any value but 1, the recorded entropy is not the one in the law."""
    alpha: float
    """The sweep's alpha. Intervals have level 1 - alpha."""
    ceiling_difference: PairedComparison | None = None
    """For a pooled fit, the ceilings of the arm's seeds compared with those of the baseline's."""

    @property
    def a(self) -> LawInterval | None:
        if self.law is None or self.uncertainty is None:
            return None
        return LawInterval.around(self.law.a, self.uncertainty.half_width_a(self.alpha))

    @property
    def b(self) -> LawInterval | None:
        if self.law is None or self.uncertainty is None:
            return None
        return LawInterval.around(self.law.b, self.uncertainty.half_width_b(self.alpha))

    @property
    def ceiling(self) -> LawInterval | None:
        """The ceiling at H = 0. None if a <= 0: then the reward rises with the entropy, and is lowest at H = 0."""
        if self.law is None or self.uncertainty is None or self.law.a <= 0:
            return None
        return LawInterval.around(self.law.ceiling, float(self.uncertainty.half_widths([0.0], self.alpha)[0]))

    @property
    def free_exponent(self) -> LawInterval | None:
        if self.exponent is None or self.exponent_uncertainty is None:
            return None
        return LawInterval.around(self.exponent.exponent, self.exponent_uncertainty.exponent)

    @property
    def free_ceiling(self) -> LawInterval | None:
        """The reward at H = 0 according to the fit with a free exponent."""
        if self.exponent is None or self.exponent_uncertainty is None:
            return None
        return LawInterval.around(self.exponent.ceiling, self.exponent_uncertainty.ceiling)

    @property
    def contradicts_the_form(self) -> bool:
        """True if the interval of the free exponent excludes 1, which the law assumes."""
        found = self.free_exponent
        return found is not None and not found.low <= 1 <= found.high

    @property
    def form_moves_ceiling(self) -> bool:
        """True if the points contradict the law's form, and a free exponent moves the ceiling out of its interval."""
        ceiling, free = self.ceiling, self.free_ceiling
        if ceiling is None or free is None:
            return False
        return self.contradicts_the_form and not ceiling.low <= free.value <= ceiling.high


@derived
def pooled_fits(analysis: Analysis) -> list[EntropyFit]:
    """Return the fits to all seeds pooled, from `entropy_fits`."""
    return [fit for fit in entropy_fits(analysis) if fit.seed is None]


def entropy_fits(analysis: Analysis) -> list[EntropyFit]:
    """Fit every arm, pooled and then per seed, for each target and each recorded kind of entropy.

    Only the pooled fits are cached: with a thousand seeds, the others would be a quarter of the data behind the
    figures.
    """
    sweep = analysis.sweep
    found = [
        _ArmRuns(arm, target, kind, cells[0].cell.spec, sweep.alpha, runs)
        for target in _targets(analysis)
        for kind in ENTROPY_KINDS
        for arm, cells in analysis.measurements.items()
        if (runs := {m.cell.seed: run for m in cells if len(run := _run(m, target, kind))})
    ]
    fits = each_in_processes(_fits_of_arm, found, analysis.processes)
    baselines = {(pooled.target, pooled.entropy): seeds for pooled, *seeds in fits if pooled.arm == sweep.baseline}
    compared = [
        [_with_ceiling_difference(pooled, seeds, baselines.get((pooled.target, pooled.entropy), []), sweep), *seeds]
        for pooled, *seeds in fits
    ]
    remember(analysis, pooled_fits, [pooled for pooled, *_ in compared])
    return [fit for of_arm in compared for fit in of_arm]


def _targets(analysis: Analysis) -> list[Target]:
    """Return the targets: the training reward, then the compared metric on each task."""
    name = analysis.metric.name
    before = scores_before_pp(analysis)
    scores = [Target(f"{name} of {task}", task, name, "pp", before.get(task)) for task in analysis.sweep.tasks]
    return [Target("training reward", None, REWARD, "reward"), *scores]


def scores_before_pp(analysis: Analysis) -> dict[str, float]:
    """Return the compared metric of the model before training by task, in percent. Tasks without one are left out."""
    rows = analysis.sweep.base_scores_of()
    known = {row["task"]: finite(row["metrics"].get(analysis.metric.name)) for row in rows}
    return {task: 100 * score for task, score in known.items() if score is not None}


def entropy_interventions(spec: Mapping[str, Any]) -> list[str]:
    """List the knobs of a resolved spec that act on entropy.

    These are a raised upper clip, a covariance method, an entropy bonus and adaptive entropy control.
    """
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
    """The data that one arm's laws are fitted to."""

    arm: str
    target: Target
    entropy: EntropyKind
    spec: Mapping[str, Any]
    """The spec of one of the arm's cells."""
    alpha: float
    """The sweep's alpha."""
    runs: dict[int, EntropyRun]


def _fits_of_arm(arm: _ArmRuns) -> list[EntropyFit]:
    """Fit all runs pooled, then each run."""
    return [_fit(arm, None, arm.runs), *(_fit(arm, seed, {seed: run}) for seed, run in arm.runs.items())]


def _run(measurement: Measurement, target: Target, kind: EntropyKind) -> EntropyRun:
    """Return the steps at which both the entropy and the target are known.

    Entropy and training reward are those of the policy before the step's update, but an evaluation follows the update.
    The score before training becomes the point at step 0, paired with the entropy of the first step.
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
        if target.before is not None and len(step) and step[0] == 1:
            step, entropy = np.append(0, step), np.append(entropy[0], entropy)
            reward = np.append(target.before, reward)
    known = ~np.isnan(entropy) & ~np.isnan(reward)
    return EntropyRun(step[known], entropy[known], reward[known])


def _fit(of: _ArmRuns, seed: int | None, runs: dict[int, EntropyRun]) -> EntropyFit:
    parts = [*runs.values()]
    entropy, reward = pooled(parts)
    fitted, refused = or_reason(lambda: (fit_entropy_law(entropy, reward), law_uncertainty(parts)))
    law, uncertainty = fitted or (None, None)
    free, exponent_refused = or_reason(lambda: _free_exponent(parts, of.alpha))
    exponent, exponent_uncertainty = free or (None, None)
    forecasted, forecast_refused = or_reason(lambda: forecast(parts))
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
        exponent_uncertainty=exponent_uncertainty,
        exponent_refused=exponent_refused,
        forecast=forecasted,
        forecast_refused=forecast_refused,
        interventions=entropy_interventions(of.spec),
        temperature=float((of.spec.get("rollout") or {}).get("temperature", 1.0)),
        alpha=of.alpha,
    )


def _free_exponent(runs: Sequence[EntropyRun], alpha: float) -> tuple[FreeExponent, FreeExponentUncertainty]:
    fitted = fit_free_exponent(*pooled(runs))
    return fitted, free_exponent_uncertainty(runs, fitted, alpha)


def or_reason(fit: Callable[[], Fitted]) -> tuple[Fitted | None, str]:
    """Return the result of a fit, or None and the reason for its refusal."""
    try:
        return fit(), ""
    except LawRefusedError as error:
        return None, str(error)


def _with_ceiling_difference(
    fit: EntropyFit, seeds: Sequence[EntropyFit], baseline: Sequence[EntropyFit], sweep: SweepRecord
) -> EntropyFit:
    """Add the comparison of the ceilings of the arm's seeds with those of the baseline's.

    Seeds with a negative a, whose law has a floor at H = 0, are included: leaving them out would select by outcome.
    """
    own, other = ({f.seed: f.law.ceiling for f in fits if f.law is not None} for fits in (seeds, baseline))
    shared = [seed for seed in own if seed in other]
    if fit.arm == sweep.baseline or fit.ceiling is None or not shared:
        return fit
    difference = compare_paired([own[seed] for seed in shared], [other[seed] for seed in shared], sweep.alpha)
    return replace(fit, ceiling_difference=difference)
