"""Main effects and interactions of a sweep that is a factorial (`grid:`), paired by seed, in percentage points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from reports.measure import Analysis
from reports.measure.measurements import Measurement
from reports.statistics import Effect, FloatArray, PairedComparison, benjamini_hochberg, factorial_effects


@dataclass(frozen=True)
class FactorEffect:
    """A main effect of one knob, or the interaction of two, against the values that the baseline has.

    comparison: at level 1 - alpha, for this effect on its own. q: its p value after Benjamini and Hochberg over all
    effects of the sweep; NaN without a test.
    """

    kind: Literal["main", "interaction"]
    knobs: list[str]
    values: list[Any]
    reference: list[Any]
    comparison: PairedComparison
    q: float


@dataclass(frozen=True)
class Interactions:
    """The effects of a factorial. seeds: the ones used, which have a score in every arm. refused: why there are no
    effects, or ""."""

    effects: list[FactorEffect] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    refused: str = ""


def interactions(analysis: Analysis) -> Interactions | None:
    """Every main effect and every interaction of two knobs; None if the sweep is not a factorial."""
    sweep, measurements = analysis.sweep, analysis.measurements
    grid = sweep.grid
    if not grid:
        return None
    levels = _levels(grid)
    arms = _arms_by_point(grid, levels)
    absent = math.prod(map(len, levels.values())) - len(arms)
    if absent:
        return Interactions(refused=f"{absent} of the grid's arms are not in this sweep, so its knobs are not crossed")
    seeds = [
        seed
        for seed in sweep.seeds
        if all(any(m.cell.seed == seed and m.score_pp is not None for m in measurements[arm]) for arm in sweep.arms)
    ]
    if not seeds:
        return Interactions(refused="no seed has a score in every arm of the grid")
    effects = factorial_effects(
        _scores(arms, levels, measurements, seeds),
        [values.index(grid[sweep.baseline][knob]) for knob, values in levels.items()],
        sweep.alpha,
    )
    p_values = [effect.comparison.p_value for effect in effects]
    adjusted = benjamini_hochberg([1.0 if math.isnan(p) else p for p in p_values])
    return Interactions(
        [
            _named(effect, levels, grid[sweep.baseline], math.nan if math.isnan(p) else float(q))
            for effect, p, q in zip(effects, p_values, adjusted, strict=True)
        ],
        seeds,
    )


def _named(effect: Effect, levels: dict[str, list[Any]], baseline: dict[str, Any], q: float) -> FactorEffect:
    names = list(levels)
    knobs = [names[factor] for factor in effect.factors]
    return FactorEffect(
        kind="main" if len(knobs) == 1 else "interaction",
        knobs=knobs,
        values=[levels[knob][level] for knob, level in zip(knobs, effect.levels, strict=True)],
        reference=[baseline[knob] for knob in knobs],
        comparison=effect.comparison,
        q=q,
    )


def _levels(grid: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """The values of each knob, in the order in which arms have them."""
    levels: dict[str, list[Any]] = {}
    for point in grid.values():
        for knob, value in point.items():
            if value not in levels.setdefault(knob, []):
                levels[knob].append(value)
    return levels


def _arms_by_point(grid: dict[str, dict[str, Any]], levels: dict[str, list[Any]]) -> dict[tuple[int, ...], str]:
    """The arms by the positions of their values."""
    return {tuple(values.index(point[knob]) for knob, values in levels.items()): arm for arm, point in grid.items()}


def _scores(
    arms: dict[tuple[int, ...], str],
    levels: dict[str, list[Any]],
    measurements: dict[str, list[Measurement]],
    seeds: list[int],
) -> FloatArray:
    """The scores as [n_seeds, levels of the first knob, levels of the second, ...]."""
    table = np.full((len(seeds), *map(len, levels.values())), math.nan)
    for point, arm in arms.items():
        scores = {m.cell.seed: m.score_pp for m in measurements[arm]}
        for row, seed in enumerate(seeds):
            table[(row, *point)] = scores[seed]
    return table


def interaction_rows(found: Interactions | None) -> list[dict[str, Any]]:
    """The rows of report.json, one for each effect; a single row with `refused` if there are none."""
    if found is None:
        return []
    if found.refused:
        return [{"refused": found.refused}]
    return [
        {
            "refused": None,
            "kind": effect.kind,
            "knobs": effect.knobs,
            "values": effect.values,
            "reference": effect.reference,
            "difference_pp": effect.comparison.difference,
            "low_pp": effect.comparison.low,
            "high_pp": effect.comparison.high,
            "level": 1 - effect.comparison.alpha,
            "p": effect.comparison.p_value,
            "q": effect.q,
            "detectable_pp": effect.comparison.detectable,
            "seeds": found.seeds,
        }
        for effect in found.effects
    ]
