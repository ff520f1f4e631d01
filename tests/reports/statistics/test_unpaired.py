from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.statistics import compare_unpaired

scores = st.lists(st.integers(-1000, 1000).map(lambda i: i / 8), min_size=3, max_size=9)


def test_agrees_with_scipy():
    rng = np.random.default_rng(1)
    treatment, baseline = rng.normal(1, 3, 5), rng.normal(0, 1, 9)
    result = compare_unpaired(treatment, baseline, alpha=0.02)
    reference = stats.ttest_ind(treatment, baseline, equal_var=False)
    interval = reference.confidence_interval(0.98)
    assert result.difference == pytest.approx(treatment.mean() - baseline.mean())
    assert result.p_value == pytest.approx(reference.pvalue)
    assert result.df == pytest.approx(reference.df)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert result.median == pytest.approx(np.median(treatment) - np.median(baseline))
    assert (result.n_treatment, result.n_baseline) == (5, 9)


@given(scores, scores)
def test_swapping_the_arms_mirrors_the_result(treatment, baseline):
    forward, backward = compare_unpaired(treatment, baseline, margin=5), compare_unpaired(baseline, treatment, margin=5)
    assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low))
    assert backward.p_value == pytest.approx(forward.p_value)
    assert backward.detectable == pytest.approx(forward.detectable, nan_ok=True)
    assert backward.verdict == {"better": "worse", "worse": "better"}.get(forward.verdict, forward.verdict)


def test_the_order_of_runs_does_not_matter():
    assert compare_unpaired([1.0, 2.0, 4.0], [0.0, 5.0, 1.0]) == compare_unpaired([4.0, 1.0, 2.0], [5.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("treatment", "baseline", "margin", "verdict"),
    [
        ([5.0, 5.1], [1.0, 1.1, 1.2], None, "no_test"),
        ([5.0, 5.1, 5.2], [1.0, 1.1], None, "no_test"),
        ([5.0, 5.1, 5.2], [1.0, 1.1, 1.2], None, "better"),
        ([1.0, 1.1, 1.2], [5.0, 5.1, 5.2], None, "worse"),
        ([1.0, 1.1, 1.2], [1.0, 1.1, 1.21], 1.0, "equivalent"),
        ([1.0, 1.1, 1.2], [1.0, 1.1, 1.21], None, "inconclusive"),
    ],
)
def test_verdicts(treatment, baseline, margin, verdict):
    assert compare_unpaired(treatment, baseline, margin=margin).verdict == verdict


def test_too_few_runs_have_a_difference_and_no_inference():
    result = compare_unpaired([1.0, 3.0], [0.0, 1.0, 2.0])
    assert result.difference == 1
    for name in ("low", "high", "p_value", "df", "detectable"):
        assert math.isnan(getattr(result, name))


def test_without_any_spread_the_interval_has_no_width():
    result = compare_unpaired([0.1 + 0.2] * 3, [0.1] * 4)
    assert result.low == result.high == result.difference == pytest.approx(0.2)
    assert (result.verdict, result.note, result.p_value) == ("better", "no spread", 0.0)
    same = compare_unpaired([0.1 + 0.2] * 3, [0.3] * 3)
    assert (same.difference, same.p_value, same.verdict) == (0, 1, "inconclusive")


def test_one_arm_without_spread_leaves_the_degrees_of_freedom_of_the_other():
    result = compare_unpaired([2.0, 2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    assert result.df == pytest.approx(2)
    assert result.note == ""


def test_the_detectable_effect_is_found_80_percent_of_the_time():
    effect = compare_unpaired([-1.0, 0.0, 1.0] * 3, [-1.0, 0.0, 1.0] * 3).detectable / np.std([-1, 0, 1] * 3, ddof=1)
    rng = np.random.default_rng(0)
    pairs = zip(rng.normal(effect, 1, (2000, 9)), rng.normal(0, 1, (2000, 9)), strict=True)
    assert np.mean([compare_unpaired(a, b).verdict == "better" for a, b in pairs]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    ("treatment", "match"), [([], "non-empty"), ([1.0, math.nan], "not finite"), ([[1.0]], "shape")]
)
def test_bad_scores_are_refused(treatment, match):
    with pytest.raises(ValueError, match=match):
        compare_unpaired(treatment, [1.0, 2.0])


@pytest.mark.parametrize(("alpha", "margin"), [(0.0, None), (0.05, -1.0)])
def test_bad_settings_are_refused(alpha, margin):
    with pytest.raises(ValueError, match=r"alpha is|margin is"):
        compare_unpaired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], alpha=alpha, margin=margin)
