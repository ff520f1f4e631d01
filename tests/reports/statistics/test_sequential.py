"""The chance that any look misses, for contrasts that share a baseline, and for levels that share nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from reports.statistics import FloatArray, look_alphas, planned_shares, unplanned_share

DESIGNS = 20_000
LOOKS = (6, 12, 18, 24)
ALPHA = 0.05
MARGIN = 2.0
"""In standard deviations of the paired difference: from six seeds on, an interval can lie within."""


def intervals(alphas: Sequence[float], contrasts: int, truth: float) -> list[tuple[FloatArray, FloatArray]]:
    """The ends [contrasts, DESIGNS] of each look's intervals of arms that share their baseline's noise."""
    arms = np.random.default_rng(5).normal(0, 1 / math.sqrt(2), (contrasts + 1, DESIGNS, LOOKS[-1]))
    differences = arms[1:] - arms[0] + truth
    found = []
    for n, alpha in zip(LOOKS, alphas, strict=True):
        seen = differences[..., :n]
        half_width = stdtrit(n - 1, 1 - alpha / 2) * seen.std(axis=-1, ddof=1) / math.sqrt(n)
        found.append((seen.mean(axis=-1) - half_width, seen.mean(axis=-1) + half_width))
    return found


def any_false_difference(alphas: Sequence[float], contrasts: int) -> float:
    """The share of designs in which any look calls equal arms better or worse."""
    false = [(low > 0) | (high < 0) for low, high in intervals(alphas, contrasts, truth=0.0)]
    return float(np.any(false, axis=(0, 1)).mean())


def any_false_equivalence(alphas: Sequence[float], contrasts: int) -> float:
    """The share of designs in which any look calls arms equivalent that differ by the margin."""
    false = [(low >= -MARGIN) & (high <= MARGIN) for low, high in intervals(alphas, contrasts, truth=MARGIN)]
    return float(np.any(false, axis=(0, 1)).mean())


def design(contrasts: int) -> tuple[float, ...]:
    return look_alphas(LOOKS, tuple(ALPHA / contrasts * share for share in planned_shares(LOOKS)))


@pytest.mark.slow
@pytest.mark.parametrize("contrasts", [1, 3])
def test_all_looks_together_hold_the_level_and_95_percent_each_time_do_not(contrasts: int) -> None:
    error = math.sqrt(ALPHA * (1 - ALPHA) / DESIGNS)
    naive = [ALPHA / contrasts] * len(LOOKS)
    assert any_false_difference(design(contrasts), contrasts) <= ALPHA + 2 * error
    assert any_false_equivalence(design(contrasts), contrasts) <= ALPHA + 2 * error
    assert any_false_difference(naive, contrasts) > 1.8 * ALPHA
    assert any_false_equivalence([ALPHA] * len(LOOKS), 3) > 1.8 * ALPHA
    # Nor is the level wasted: a single contrast uses it up, but for the simulation's caution.
    assert any_false_difference(design(1), 1) >= 0.9 * ALPHA


def test_unplanned_looks_however_many_spend_no_more_than_alpha() -> None:
    spent = tuple(ALPHA * unplanned_share(look) for look in (1, 2, 3, 4))
    assert sum(spent) == pytest.approx(ALPHA * 15 / 16)
    assert any_false_difference(look_alphas(LOOKS, spent), 1) <= sum(spent) * 1.05


def test_a_single_look_has_all_of_its_share() -> None:
    assert look_alphas((12,), (0.05,)) == (0.05,)
    assert planned_shares((12,)) == pytest.approx((1.0,))


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(3, 60), min_size=2, max_size=4, unique=True).map(sorted), st.sampled_from([0.05, 0.0125]))
def test_shared_data_give_a_look_more_than_its_share_and_less_than_all(seeds: list[int], alpha: float) -> None:
    shares = planned_shares(seeds)
    assert sum(shares) == pytest.approx(1)
    alphas = look_alphas(tuple(seeds), tuple(alpha * share for share in shares))
    for level, share in zip(alphas, shares, strict=True):
        assert alpha * share <= level * (1 + 1e-12) < alpha
