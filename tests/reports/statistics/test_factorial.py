from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.statistics import FloatArray, PairedComparison, compare_paired, factorial_effects


def compared(scores: FloatArray, reference: Sequence[int]) -> list[PairedComparison]:
    return [compare_paired(*effect.sides(scores)) for effect in factorial_effects(scores.shape[1:], reference)]


def test_two_by_two_by_hand():
    """Per seed: rows are levels of the first factor, columns of the second."""
    scores = np.array([[[1.0, 2.0], [4.0, 9.0]], [[0.0, 1.0], [2.0, 6.0]], [[5.0, 5.0], [6.0, 8.0]]])
    first, second, both = factorial_effects((2, 2), reference=[0, 0])
    # Mean of row 1 minus mean of row 0: 6.5 - 1.5, 4 - .5, 7 - 5; columns alike.
    assert (first.factors, first.levels) == ((0,), (1,))
    assert np.array(first.sides(scores)).tolist() == [[6.5, 4.0, 7.0], [1.5, 0.5, 5.0]]
    assert np.array(second.sides(scores)).tolist() == [[5.5, 3.5, 6.5], [2.5, 1.0, 5.5]]
    # The first factor's effect at column 1 (7, 5, 3) minus that at column 0 (3, 2, 1).
    assert (both.factors, both.levels) == ((0, 1), (1, 1))
    assert np.subtract(*both.sides(scores)).tolist() == [4.0, 3.0, 2.0]


def test_the_reference_may_be_any_level():
    scores = np.random.default_rng(0).normal(size=(4, 3, 2))
    effects = factorial_effects((3, 2), reference=[1, 1])
    assert [(effect.factors, effect.levels) for effect in effects] == [
        ((0,), (0,)), ((0,), (2,)), ((1,), (0,)), ((0, 1), (0, 0)), ((0, 1), (2, 0)),
    ]  # fmt: skip
    found = [comparison.difference for comparison in compared(scores, [1, 1])]
    expected = scores[:, 2].mean(axis=1) - scores[:, 1].mean(axis=1)
    assert found[1] == pytest.approx(expected.mean())
    crossed = (scores[:, 2, 0] - scores[:, 1, 0]) - (scores[:, 2, 1] - scores[:, 1, 1])
    assert found[-1] == pytest.approx(crossed.mean())


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_effects_that_add_up_have_no_interaction_and_three_factors_are_averaged_over(seed):
    rng = np.random.default_rng(seed)
    n, shape = 5, (2, 3, 2)
    by_factor = [rng.normal(size=(n, levels)) for levels in shape]
    scores = by_factor[0][:, :, None, None] + by_factor[1][:, None, :, None] + by_factor[2][:, None, None, :]
    effects = factorial_effects(shape, reference=[0, 0, 0])
    found = compared(scores, [0, 0, 0])
    assert len(effects) == 4 + 2 + 1 + 2
    for effect, comparison in zip(effects[:4], found[:4], strict=True):
        (factor,), (level,) = effect.factors, effect.levels
        own = by_factor[factor][:, level] - by_factor[factor][:, 0]
        assert comparison.difference == pytest.approx(own.mean())
        assert comparison.low == pytest.approx(compare_paired(own, np.zeros(n)).low)
    for comparison in found[4:]:
        assert comparison.difference == pytest.approx(0, abs=1e-12)


def test_the_interval_of_an_interaction_is_calibrated_and_its_sd_known():
    """Around a true difference of differences of 1, with strong seed effects, which cancel."""
    rng = np.random.default_rng(0)
    hits, effects = [], factorial_effects((2, 2), reference=[0, 0])
    for _ in range(1000):
        scores = rng.normal(0, 10, (6, 1, 1)) + rng.normal(0, 1, (6, 2, 2))
        scores[:, 1, 1] += 1
        comparison = compare_paired(*effects[-1].sides(scores))
        hits.append(comparison.low <= 1 <= comparison.high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)
    many = rng.normal(0, 10, (20_000, 1, 1)) + rng.normal(0, 1, (20_000, 2, 2))
    for effect in effects:
        sd = np.subtract(*effect.sides(many)).std()
        assert sd == pytest.approx(effect.sd_ratio * 2**0.5, rel=0.02), "of two cells: the root of 2"
