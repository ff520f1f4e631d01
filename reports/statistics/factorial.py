"""Main effects and interactions of a full factorial, paired by seed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.comparison import PairedComparison, compare_paired
from reports.statistics.means import FloatArray


@dataclass(frozen=True)
class Effect:
    """One effect of a factorial.

    One factor: the main effect of factor `factors[0]` at `levels[0]`. It is the mean score at this level minus that at
    the reference level, both averaged over all levels of the other factors.

    Two factors: their interaction, a difference of differences. It is the effect of the first at the second's level
    minus the effect of the first at the second's reference level, averaged over the levels of the others; 0 where the
    two effects add up.
    """

    factors: tuple[int, ...]
    levels: tuple[int, ...]
    comparison: PairedComparison


def factorial_effects(scores: FloatArray, reference: Sequence[int], alpha: float = 0.05) -> list[Effect]:
    """The main effects, then the interactions of two factors, each tested by a paired t test over seeds.

    scores [n_seeds, levels of factor 0, levels of factor 1, ...]: every cell is filled. reference: a level of each
    factor, with which its other levels are compared. alpha: the level of each effect on its own; nothing is corrected
    here. Interactions of three or more factors are left out.

    Raises ValueError for another shape, a cell that is not finite, or a reference that is not a level.
    """
    table = np.asarray(scores, dtype=np.float64)
    _require_factorial(table, reference)
    factors = range(table.ndim - 1)
    main = [
        Effect((factor,), (level,), compare_paired(*_at(table, factor, level, reference[factor]), alpha=alpha))
        for factor in factors
        for level in _others(table, factor, reference)
    ]
    return main + [
        Effect((first, second), levels, _interaction(table, (first, second), levels, reference, alpha))
        for first, second in itertools.combinations(factors, 2)
        for levels in itertools.product(_others(table, first, reference), _others(table, second, reference))
    ]


def _interaction(
    table: FloatArray, factors: tuple[int, int], levels: tuple[int, ...], reference: Sequence[int], alpha: float
) -> PairedComparison:
    first, second = factors
    at_level, at_reference = (
        np.subtract(*_at(table.take([level], axis=second + 1), first, levels[0], reference[first]))
        for level in (levels[1], reference[second])
    )
    return compare_paired(at_level, at_reference, alpha=alpha)


def _at(table: FloatArray, factor: int, level: int, reference: int) -> tuple[FloatArray, FloatArray]:
    """Means [n_seeds] over all other factors, at the level and at the reference level."""
    others = tuple(axis for axis in range(1, table.ndim) if axis != factor + 1)
    means = table.mean(axis=others)
    return means[:, level], means[:, reference]


def _others(table: FloatArray, factor: int, reference: Sequence[int]) -> list[int]:
    return [level for level in range(table.shape[factor + 1]) if level != reference[factor]]


def _require_factorial(table: FloatArray, reference: Sequence[int]) -> None:
    if table.ndim < 2 or table.size == 0:
        raise ValueError(
            f"scores have shape {table.shape}: give [n_seeds, levels of factor 0, levels of factor 1, ...]"
        )
    if not bool(np.isfinite(table).all()):
        raise ValueError("scores are not finite in every cell: leave out the seeds that lack one")
    shape = table.shape[1:]
    if len(reference) != len(shape) or not all(
        0 <= level < levels for level, levels in zip(reference, shape, strict=False)
    ):
        raise ValueError(f"reference is {list(reference)}: name one level of each factor, which have {list(shape)}")
