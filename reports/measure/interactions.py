"""The declared contrasts of a factorial (`grid:`): main effects and interactions, paired by seed, in percentage points.

They are corrected for multiplicity as one family. Comparisons of arms with the baseline are a second family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from reports.measure import Analysis, derived
from reports.measure.contrasts import (
    NORMAL_95,
    SCORE_LIMITS_PP,
    Contrast,
    alpha_of_each,
    compare_arms,
    missing_pairs,
    with_holm,
)
from reports.measure.measurements import Measurement
from reports.report import Within
from reports.statistics import Effect, FloatArray, PairedComparison, compare_paired, factorial_effects

if TYPE_CHECKING:
    from harness.records import SweepRecord

ADDITIVE = "additive"
"""The name shown as the baseline of an interaction: the two effects add up."""

Values = dict[str, object]


@dataclass(frozen=True)
class Factorial:
    """The crossed knobs of a sweep."""

    levels: dict[str, list[object]]
    """Maps each knob to its values, in the order of the arms."""
    arms: dict[tuple[int, ...], str]
    """Maps the positions of the values, one per knob, to the arm."""
    reference: tuple[int, ...]
    """The positions of the baseline's values, one per knob."""

    @classmethod
    def of(cls, grid: Mapping[str, Values], baseline: str) -> Factorial | None:
        """Build the factorial of a grid, which maps each arm to its value of every knob.

        None unless at least two knobs have several values each. With one knob, the arms are a plain list.
        """
        levels: dict[str, list[object]] = {}
        for point in grid.values():
            for knob, value in point.items():
                if value not in levels.setdefault(knob, []):
                    levels[knob].append(value)
        levels = {knob: values for knob, values in levels.items() if len(values) > 1}
        if len(levels) < 2:
            return None
        places = {
            arm: tuple(values.index(point[knob]) for knob, values in levels.items()) for arm, point in grid.items()
        }
        return cls(levels, {place: arm for arm, place in places.items()}, places[baseline])

    @property
    def n_absent(self) -> int:
        """The number of combinations that have no arm, e.g. because --arms left it out."""
        return math.prod(self.shape) - len(self.arms)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.levels.values()))

    @cached_property
    def effects(self) -> list[Effect]:
        """The main effects, then the two-knob interactions; [] if a combination has no arm."""
        return [] if self.n_absent else factorial_effects(self.shape, self.reference)

    def table(self, value_of: Mapping[str, float]) -> FloatArray:
        """Arrange one value per arm as an array [values of the first knob, values of the second, ...]."""
        table = np.full(self.shape, math.nan)
        for place, arm in self.arms.items():
            table[place] = value_of[arm]
        return table

    def weights(self, effect: Effect) -> dict[str, float]:
        """Return the arms that an effect involves, each with its weight."""
        return {arm: float(weight) for place, arm in self.arms.items() if (weight := effect.weights[place])}

    def values(self, effect: Effect) -> Values:
        """Return the knobs of an effect, each with the value that is compared with the baseline's."""
        named = self._named(effect)
        return {knob: self.levels[knob][level] for knob, level in zip(named, effect.levels, strict=True)}

    def reference_values(self, effect: Effect) -> dict[str, object]:
        """Return the knobs of an effect, each with the baseline's value."""
        references = [self.reference[factor] for factor in effect.factors]
        return {knob: self.levels[knob][level] for knob, level in zip(self._named(effect), references, strict=True)}

    def _named(self, effect: Effect) -> list[str]:
        knobs = list(self.levels)
        return [knobs[factor] for factor in effect.factors]

    def label(self, effect: Effect) -> str:
        """Return `clip_high=0.28`, as in the names of arms; for an interaction `clip_high=0.28:beta=0.1`."""
        return ":".join(_setting(knob, value) for knob, value in self.values(effect).items())

    def baseline_label(self, effect: Effect) -> str:
        ((knob, value), *more) = self.reference_values(effect).items()
        return ADDITIVE if more else _setting(knob, value)


def _setting(knob: str, value: object) -> str:
    return f"{knob.rpartition('.')[2]}={value}"


@dataclass(frozen=True)
class FactorEffect:
    """A main effect of one knob, or the interaction of two, relative to the baseline's values."""

    kind: Literal["main", "interaction"]
    values: Values
    reference: Values
    contrast: Contrast
    """Computed from the seeds that have a score in every arm."""
    within: list[Within]
    """For a main effect: its size at each value of each other knob, with an interval, in percentage points."""


@dataclass(frozen=True)
class Declared:
    """A contrast that a sweep declares before there are results."""

    name: str
    baseline: str
    sd_ratio: float
    """The contrast's standard deviation divided by that of a difference of two arms; see `Effect`."""


def declared_names(grid: Mapping[str, dict[str, object]], arms: Sequence[str], baseline: str) -> list[Declared]:
    """Return the contrasts that a sweep declares: the effects of a factorial, or else the other arms.

    grid: the same mapping as in sweep.json.
    """
    factorial = Factorial.of(grid, baseline)
    if factorial is None or not factorial.effects:
        return [Declared(arm, baseline, 1.0) for arm in arms if arm != baseline]
    return [
        Declared(factorial.label(effect), factorial.baseline_label(effect), effect.sd_ratio)
        for effect in factorial.effects
    ]


def factorial_of(sweep: SweepRecord) -> Factorial | None:
    return Factorial.of(sweep.grid, sweep.baseline)


def declared_contrasts(sweep: SweepRecord, measurements: Mapping[str, Sequence[Measurement]]) -> list[Contrast]:
    """Return the declared contrasts: the effects of a factorial, or else every arm against the baseline."""
    effects = factor_effects(sweep, measurements)
    return [effect.contrast for effect in effects] or compare_arms(sweep, measurements)


@derived
def effects_of(analysis: Analysis) -> list[FactorEffect]:
    """Return the `factor_effects` of an analysis."""
    return factor_effects(analysis.sweep, analysis.measurements)


def declared_of(analysis: Analysis) -> list[Contrast]:
    """Return the `declared_contrasts` of an analysis."""
    return [effect.contrast for effect in effects_of(analysis)] or analysis.contrasts


def factor_effects(sweep: SweepRecord, measurements: Mapping[str, Sequence[Measurement]]) -> list[FactorEffect]:
    """Estimate every main effect and every two-knob interaction; [] if the sweep is not a complete factorial.

    With m effects, each has level 1 - alpha / m, and Holm's correction covers all m.
    """
    factorial = factorial_of(sweep)
    if factorial is None or not factorial.effects:
        return []
    complete = complete_seeds(sweep, measurements)
    alpha = alpha_of_each(sweep, len(factorial.effects))
    contrasts = with_holm([_contrast(sweep, factorial, effect, complete, alpha) for effect in factorial.effects])
    scores = np.array([factorial.table(_scores(runs)) for runs in complete.values()])
    return [
        FactorEffect(
            kind="main" if len(effect.factors) == 1 else "interaction",
            values=factorial.values(effect),
            reference=factorial.reference_values(effect),
            contrast=contrast,
            within=_within(factorial, effect, scores, alpha, _quantum_pp(complete)) if complete else [],
        )
        for effect, contrast in zip(factorial.effects, contrasts, strict=True)
    ]


def complete_seeds(
    sweep: SweepRecord, measurements: Mapping[str, Sequence[Measurement]]
) -> dict[int, dict[str, Measurement]]:
    """Return the measurements of all arms by seed, for the seeds that have a score in every arm."""
    by_arm = {arm: {m.cell.seed: m for m in measurements[arm] if m.score_pp is not None} for arm in sweep.arms}
    return {
        seed: {arm: by_seed[seed] for arm, by_seed in by_arm.items()}
        for seed in sweep.seeds
        if all(seed in by_seed for by_seed in by_arm.values())
    }


def _scores(runs: Mapping[str, Measurement]) -> dict[str, float]:
    return {arm: m.score_pp for arm, m in runs.items() if m.score_pp is not None}


def _quantum_pp(complete: Mapping[int, Mapping[str, Measurement]]) -> float:
    return max((m.quantum_pp for runs in complete.values() for m in runs.values()), default=0.0)


def _contrast(
    sweep: SweepRecord, factorial: Factorial, effect: Effect, complete: dict[int, dict[str, Measurement]], alpha: float
) -> Contrast:
    """Compare the arms of positive weight with those of negative weight. `p_holm` is filled in later."""
    weights = factorial.weights(effect)
    flagged = [seed for seed, runs in complete.items() if any(runs[arm].cell.flags for arm in weights)]
    ratios = _token_ratios(factorial, effect, complete)
    scores = {seed: factorial.table(_scores(runs)) for seed, runs in complete.items()}
    quantum_pp = _quantum_pp(complete)
    # Each side is a weighted sum of scores, so its limits are the limits of a score times the sum of the weights.
    (lowest, highest), total = SCORE_LIMITS_PP, float(np.maximum(effect.weights, 0).sum())

    def compare(seeds: Sequence[int]) -> PairedComparison | None:
        if not seeds:
            return None
        return compare_paired(
            *effect.sides(np.array([scores[seed] for seed in seeds])),
            alpha=alpha,
            margin=sweep.margin_pp,
            identical=all(_acts_on_no_weight(factorial, effect, complete[seed]) for seed in seeds),
            quantum=quantum_pp * min(map(abs, weights.values())),
            limits=(lowest * total, highest * total),
        )

    comparison = compare(list(complete))
    noise = math.nan
    if comparison is not None and math.isnan(comparison.low):
        noise = _evaluation_noise_pp(factorial, effect, complete)
    present = math.nan if comparison is None else comparison.difference
    cells = {(cell.arm, cell.seed): cell for cell in sweep.cells}
    return Contrast(
        arm=factorial.label(effect),
        baseline=factorial.baseline_label(effect),
        weights=weights,
        seeds=list(complete),
        differences_pp=np.subtract(*effect.sides(np.array([*scores.values()]))).tolist() if scores else [],
        missing=missing_pairs(cells, sweep.arms, sweep.seeds, complete),
        flagged_seeds=flagged,
        comparison=comparison,
        without_flagged=compare([seed for seed in complete if seed not in flagged]) if flagged else None,
        p_holm=math.nan,
        token_ratios=ratios,
        token_ratio=float(np.mean(ratios)) if ratios else None,
        noise_low_pp=present - noise,
        noise_high_pp=present + noise,
    )


def _neighbours(factorial: Factorial, effect: Effect, factor: int) -> list[tuple[str, str]]:
    """Return the pairs of arms that differ only in this factor: one at the effect's value, one at the baseline's."""
    at_level = effect.levels[effect.factors.index(factor)]
    pairs = []
    for place, arm in factorial.arms.items():
        if place[factor] == at_level and effect.weights[place]:
            other = (*place[:factor], factorial.reference[factor], *place[factor + 1 :])
            pairs.append((arm, factorial.arms[other]))
    return pairs


def _acts_on_no_weight(factorial: Factorial, effect: Effect, runs: Mapping[str, Measurement]) -> bool:
    """Return whether one of the effect's knobs leaves the final weights unchanged at every value of the other knobs."""
    return any(
        all(
            runs[arm].cell.digest is not None and runs[arm].cell.digest == runs[other].cell.digest
            for arm, other in _neighbours(factorial, effect, factor)
        )
        for factor in effect.factors
    )


def _token_ratios(
    factorial: Factorial, effect: Effect, complete: Mapping[int, Mapping[str, Measurement]]
) -> list[float]:
    """Return the token ratio for each seed and each pair of arms that differ only in the effect's first knob.

    [] if any of the arms generated no tokens.
    """
    tokens = [
        (runs[arm].cell.generated_tokens or 0, runs[other].cell.generated_tokens or 0)
        for runs in complete.values()
        for arm, other in _neighbours(factorial, effect, effect.factors[0])
    ]
    return [one / other for one, other in tokens] if all(one and other for one, other in tokens) else []


def _evaluation_noise_pp(
    factorial: Factorial, effect: Effect, complete: Mapping[int, Mapping[str, Measurement]]
) -> float:
    """Return the half-width of the effect's 95% interval due to sampling of completions alone.

    The errors add in quadrature, as for a contrast of two arms.
    """
    variance = 0.0
    for runs in complete.values():
        errors = {arm: m.final_value("se_samples_pp") for arm, m in runs.items()}
        table = factorial.table({arm: math.nan if error is None else error for arm, error in errors.items()})
        involved = effect.weights != 0
        variance += float(((effect.weights * table)[involved] ** 2).sum())
    return NORMAL_95 * math.sqrt(variance) / len(complete) if variance > 0 else math.nan


def _within(factorial: Factorial, effect: Effect, scores: FloatArray, alpha: float, quantum_pp: float) -> list[Within]:
    """Compute a main effect at each value of each other knob, with intervals at the level of the effects.

    scores: [seeds, values of the first knob, values of the second, ...]
    Returns [] for an interaction.
    """
    if len(effect.factors) > 1:
        return []
    ((factor,), (level,)) = effect.factors, effect.levels
    sides = [np.take(scores, one, axis=factor + 1) for one in (level, factorial.reference[factor])]
    others = [(knob, values) for i, (knob, values) in enumerate(factorial.levels.items()) if i != factor]
    rows = []
    for axis, (knob, values) in enumerate(others, start=1):
        averaged_over = tuple(i for i in range(1, sides[0].ndim) if i != axis)
        means = [side.mean(axis=averaged_over) for side in sides]
        quantum = quantum_pp * len(scores) * len(values) / sides[0].size
        for place, value in enumerate(values):
            found = compare_paired(means[0][:, place], means[1][:, place], alpha=alpha, quantum=quantum)
            rows.append(
                Within(knob=knob, value=value, difference_pp=found.difference, low_pp=found.low, high_pp=found.high)
            )
    return rows
