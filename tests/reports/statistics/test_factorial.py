from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.statistics import compare_paired, factorial_effects


def test_two_by_two_by_hand():
    """Per seed: rows are levels of the first factor, columns of the second."""
    scores = np.array([[[1.0, 2.0], [4.0, 9.0]], [[0.0, 1.0], [2.0, 6.0]], [[5.0, 5.0], [6.0, 8.0]]])
    first, second, both = factorial_effects(scores, reference=[0, 0])
    # Mean of row 1 minus mean of row 0: 6.5 - 1.5, 4 - .5, 7 - 5; columns alike.
    assert (first.factors, first.levels) == ((0,), (1,))
    assert first.comparison == compare_paired([6.5, 4.0, 7.0], [1.5, 0.5, 5.0])
    assert second.comparison == compare_paired([5.5, 3.5, 6.5], [2.5, 1.0, 5.5])
    # The first factor's effect at column 1 (7, 5, 3) minus that at column 0 (3, 2, 1).
    assert (both.factors, both.levels) == ((0, 1), (1, 1))
    assert both.comparison == compare_paired([7.0, 5.0, 3.0], [3.0, 2.0, 1.0])


def test_the_reference_may_be_any_level():
    scores = np.random.default_rng(0).normal(size=(4, 3, 2))
    effects = factorial_effects(scores, reference=[1, 1])
    assert [(effect.factors, effect.levels) for effect in effects] == [
        ((0,), (0,)), ((0,), (2,)), ((1,), (0,)), ((0, 1), (0, 0)), ((0, 1), (2, 0)),
    ]  # fmt: skip
    expected = scores[:, 2].mean(axis=1) - scores[:, 1].mean(axis=1)
    assert effects[1].comparison.difference == pytest.approx(expected.mean())
    crossed = (scores[:, 2, 0] - scores[:, 1, 0]) - (scores[:, 2, 1] - scores[:, 1, 1])
    assert effects[-1].comparison.difference == pytest.approx(crossed.mean())


@given(st.integers(0, 10_000))
def test_effects_that_add_up_have_no_interaction_and_three_factors_are_averaged_over(seed):
    rng = np.random.default_rng(seed)
    n, shape = 5, (2, 3, 2)
    by_factor = [rng.normal(size=(n, levels)) for levels in shape]
    scores = by_factor[0][:, :, None, None] + by_factor[1][:, None, :, None] + by_factor[2][:, None, None, :]
    effects = factorial_effects(scores, reference=[0, 0, 0])
    main = [effect for effect in effects if len(effect.factors) == 1]
    assert len(main) == 4 and len(effects) == 4 + 2 + 1 + 2
    for effect in main:
        (factor,), (level,) = effect.factors, effect.levels
        own = by_factor[factor][:, level] - by_factor[factor][:, 0]
        assert effect.comparison.difference == pytest.approx(own.mean())
        assert effect.comparison.low == pytest.approx(compare_paired(own, np.zeros(n)).low)
    for effect in effects[4:]:
        assert effect.comparison.difference == pytest.approx(0, abs=1e-12)


def test_the_interval_of_an_interaction_is_calibrated():
    """Around a true difference of differences of 1, with strong seed effects, which cancel."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(1000):
        scores = rng.normal(0, 10, (6, 1, 1)) + rng.normal(0, 1, (6, 2, 2))
        scores[:, 1, 1] += 1
        comparison = factorial_effects(scores, reference=[0, 0])[-1].comparison
        hits.append(comparison.low <= 1 <= comparison.high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("scores", "reference", "match"),
    [
        (np.zeros(3), [], "shape"),
        (np.full((3, 2), np.nan), [0], "not finite"),
        (np.zeros((3, 2)), [2], "name one level of each factor"),
        (np.zeros((3, 2, 2)), [0], "name one level of each factor"),
    ],
)
def test_what_is_no_factorial_is_refused(scores, reference, match):
    with pytest.raises(ValueError, match=match):
        factorial_effects(scores, reference)
