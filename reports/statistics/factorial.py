"""The main effects and interactions of a full factorial, as weights of its cells."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.means import FloatArray


@dataclass(frozen=True)
class Effect:
    """One effect of a factorial.

    One factor: the main effect of factor `factors[0]` at `levels[0]`. It is the mean score at this level minus the mean
    score at the reference level, both averaged over all levels of the other factors.
    Two factors: their interaction, a difference of differences. It is the first factor's effect at the second factor's
    level, minus its effect at the second factor's reference level, averaged over all other factors. It is 0 if the two
    effects add up.
    """

    factors: tuple[int, ...]
    levels: tuple[int, ...]
    weights: FloatArray
    """[levels of factor 0, levels of factor 1, ...]: the effect is the weighted sum of the cells' scores."""

    def sides(self, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the weighted sums of the scores with positive and with negative weights, each [n_seeds].

        scores: [n_seeds, levels of factor 0, levels of factor 1, ...]
        Their difference is the effect in each seed. Raises ValueError for another shape.
        """
        if scores.shape[1:] != self.weights.shape:
            raise ValueError(f"scores have shape {scores.shape}: give [n_seeds, {', '.join(map(str, self.shape))}]")
        cells = tuple(range(1, scores.ndim))
        return (
            (scores * np.maximum(self.weights, 0)).sum(axis=cells),
            (scores * np.maximum(-self.weights, 0)).sum(axis=cells),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of levels of each factor."""
        return self.weights.shape

    @property
    def sd_ratio(self) -> float:
        """The standard deviation of the effect divided by that of the difference between two single cells.

        This assumes that the noise of cells is independent once the part that a seed's cells share is removed.
        """
        # The difference of two cells has the weights 1 and -1, whose squares add up to 2.
        return float(np.sqrt((self.weights**2).sum() / 2))


def factorial_effects(shape: Sequence[int], reference: Sequence[int]) -> list[Effect]:
    """Return the main effects, then the two-factor interactions. Higher-order interactions are left out.

    shape: the number of levels of each factor.
    reference: for each factor, the level with which its other levels are compared.
    Raises ValueError for a factor without a level, or for a reference that is not a level.
    """
    if not shape or min(shape) < 1:
        raise ValueError(f"shape is {list(shape)}: give the number of levels of each factor")
    if len(reference) != len(shape) or not all(
        0 <= level < levels for level, levels in zip(reference, shape, strict=True)
    ):
        raise ValueError(f"reference is {list(reference)}: name one level of each factor, which have {list(shape)}")
    factors = range(len(shape))
    sets = [*((factor,) for factor in factors), *itertools.combinations(factors, 2)]
    return [
        Effect(chosen, levels, _weights(shape, reference, chosen, levels))
        for chosen in sets
        for levels in itertools.product(*(_others(shape[factor], reference[factor]) for factor in chosen))
    ]


def _weights(
    shape: Sequence[int], reference: Sequence[int], factors: tuple[int, ...], levels: tuple[int, ...]
) -> FloatArray:
    """Return the effect's weights: the outer product of one row per factor.

    A factor in the effect contributes 1 at its level and -1 at its reference level. Any other factor is averaged: 1 / n
    at each of its n levels.
    """
    weights = np.ones(())
    for factor, n_levels in enumerate(shape):
        row = np.full(n_levels, 1 / n_levels)
        if factor in factors:
            row = np.zeros(n_levels)
            row[levels[factors.index(factor)]], row[reference[factor]] = 1.0, -1.0
        weights = np.multiply.outer(weights, row)
    return weights


def _others(n_levels: int, reference: int) -> list[int]:
    return [level for level in range(n_levels) if level != reference]
