from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reports.statistics import compare_paired, compare_unpaired, interquartile_mean, t_band, t_interval
from reports.statistics.comparison import FINE_SPREAD


def test_three_pairs_by_hand():
    result = compare_paired([11.0, 14.0, 15.0], [10.0, 12.0, 12.0])  # differences 1, 2, 3: mean 2, sd 1
    assert result.difference == pytest.approx(2)
    assert (result.low, result.high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
    t = 2 * math.sqrt(3)
    assert result.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t))  # Student's t with 2 degrees of freedom
    assert result.p_sign_flip == 0.25
    assert result.median == 2
    assert result.verdict == "inconclusive"
    assert result.n_pairs == 3


def test_agrees_with_scipy():
    rng = np.random.default_rng(1)
    treatment, baseline = rng.normal(1, 2, 9), rng.normal(0, 2, 9)
    result = compare_paired(treatment, baseline, alpha=0.02)
    reference = stats.ttest_rel(treatment, baseline)
    interval = reference.confidence_interval(0.98)
    correlation = stats.pearsonr(treatment, baseline)
    fisher = correlation.confidence_interval(0.98)
    assert result.p_value == pytest.approx(reference.pvalue)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert result.correlation == pytest.approx(correlation.statistic)
    assert (result.correlation_low, result.correlation_high) == pytest.approx((fisher.low, fisher.high))
    unpaired_variance = treatment.var(ddof=1) + baseline.var(ddof=1)
    assert result.variance_ratio == pytest.approx((treatment - baseline).var(ddof=1) / unpaired_variance)


scores = st.lists(st.integers(-1000, 1000).map(lambda i: i / 8), min_size=3, max_size=9)


@settings(max_examples=40)
@given(st.data(), scores)
def test_swapping_the_arms_mirrors_the_result(data, treatment):
    baseline = data.draw(st.lists(st.integers(-1000, 1000), min_size=len(treatment), max_size=len(treatment)))
    forward, backward = compare_paired(treatment, baseline, margin=5), compare_paired(baseline, treatment, margin=5)
    assert backward.difference == pytest.approx(-forward.difference)
    assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low), nan_ok=True)
    assert backward.p_value == pytest.approx(forward.p_value, nan_ok=True)
    assert backward.p_sign_flip == forward.p_sign_flip
    mirrored = {"better": "worse", "worse": "better"}
    assert backward.verdict == mirrored.get(forward.verdict, forward.verdict)


@settings(max_examples=40)
@given(scores, st.floats(0.5, 100))
def test_the_unit_is_that_of_the_inputs(treatment, scale):
    baseline = [float(i * i % 7) for i in range(len(treatment))]
    result = compare_paired(treatment, baseline)
    scaled = compare_paired([scale * x for x in treatment], [scale * x for x in baseline])
    for name in ("difference", "low", "high", "median", "iqm", "detectable"):
        assert getattr(scaled, name) == pytest.approx(scale * getattr(result, name), nan_ok=True, abs=1e-9)
    assert scaled.p_value == pytest.approx(result.p_value, nan_ok=True)


@pytest.mark.parametrize(
    ("differences", "margin", "identical", "verdict"),
    [
        ([1.0, 2.0, 1.5], None, True, "identical"),
        ([0.0], 1.0, True, "identical"),
        ([5.0], None, False, "no_test"),
        ([5.0, 5.1], 100.0, False, "no_test"),
        ([0.5, 0.6, 0.55], 1.0, False, "better"),  # inside the margin, but above zero
        ([-0.5, -0.6, -0.55], 1.0, False, "worse"),
        ([-0.1, 0.0, 0.12], 1.0, False, "equivalent"),
        ([-0.1, 0.0, 0.12], 0.1, False, "inconclusive"),
        ([-0.1, 0.0, 0.12], None, False, "inconclusive"),
        ([0.5, 0.5, 0.5], 1.0, False, "inconclusive"),
        ([0.0, 0.0, 0.0], 1.0, False, "inconclusive"),
    ],
)
def test_verdicts_by_precedence(differences, margin, identical, verdict):
    """Both comparisons judge by the same rules, and differ in the spread: here the baseline has next to none."""
    baseline = np.array([3.0, 4.0, 5.0])[: len(differences)]
    assert compare_paired(baseline + differences, baseline, margin=margin, identical=identical).verdict == verdict
    if not identical and len({*differences}) > 1:
        assert compare_unpaired(differences, [0.0, 1e-6, -1e-6], margin=margin).verdict == verdict


def test_equal_differences_have_an_unknown_spread_in_spite_of_rounding():
    treatment, baseline = [0.41, 0.51, 0.61], [0.38, 0.48, 0.58]
    assert len({a - b for a, b in zip(treatment, baseline, strict=True)}) > 1  # floating point
    result = compare_paired(treatment, baseline)
    assert result.difference == pytest.approx(0.03)
    assert result.verdict == "inconclusive" and "are equal" in result.note
    for name in ("low", "high", "p_value", "detectable"):
        assert math.isnan(getattr(result, name))


@pytest.mark.parametrize("n", [3, 6, 12])
def test_equal_differences_have_no_p_value_however_their_mean_rounds(n):
    for difference in np.arange(1, 150, 4) / 30 * 10:
        compared = compare_paired([difference] * n, [0.0] * n, quantum=0.1)
        assert math.isnan(compared.p_value) and compared.note and compared.verdict == "inconclusive", difference


@pytest.mark.parametrize(("n", "spread_known"), [(3, False), (5, False), (6, True)])
def test_a_spread_below_one_quantum_is_unknown_below_six_pairs(n, spread_known):
    """Differences of 3 or 4 steps: a t interval of three takes them for certainty, and the sign flip has p = 0.25."""
    quantum = 100 / 30
    differences = np.array([3.0, 3.0, 4.0, 3.0, 4.0, 3.0][:n]) * quantum
    for result in (
        compare_paired(differences, np.zeros(n), quantum=quantum),
        compare_unpaired(differences, np.zeros(n), quantum=quantum),
    ):
        assert math.isnan(result.low) is math.isnan(result.p_value) is not spread_known
        assert result.verdict == ("better" if spread_known else "inconclusive")
        assert ("one sample" in result.note) is not spread_known
    assert compare_paired(differences, np.zeros(n)).verdict == "better"


def test_where_the_spread_is_unknown_nothing_is_said_of_what_pairing_did():
    """A grid of scores that hides the spread of the differences makes the pairing look perfect."""
    scores = np.array([40.0, 45.0, 50.0, 60.0])
    result = compare_paired(scores + np.array([0, 0, 0, 1.25]), scores, quantum=1.25)
    assert result.note == FINE_SPREAD and result.correlation > 0.99
    assert np.isnan([result.variance_ratio, result.correlation_low, result.correlation_high]).all()
    known = compare_paired(scores + np.array([0, 0, 0, 1.25]), scores, quantum=0.1)
    assert known.variance_ratio < 0.02 and known.correlation_low > 0.8


def test_a_spread_of_exactly_one_quantum_is_known():
    result = compare_paired(np.array([0.1, 0.2, 0.3]) + 7, [0.0] * 3, quantum=0.1)
    assert (result.verdict, result.note) == ("better", "")


@pytest.mark.parametrize("compare", [compare_paired, compare_unpaired])
@pytest.mark.parametrize(("score", "where"), [(0.0, "at the floor"), (100.0, "at the ceiling"), (50.0, "are equal")])
def test_arms_at_a_limit_are_not_equivalent(compare, score, where):
    result = compare([score] * 12, [score] * 12, margin=1.0, quantum=1.0, limits=(0.0, 100.0))
    assert result.verdict == "inconclusive"
    assert where in result.note


def test_equal_weights_with_equal_scores_alone_have_an_interval_without_width():
    result = compare_paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], identical=True)
    assert (result.low, result.high, result.p_value, result.note) == (0, 0, 1, "")
    assert "deterministic" in compare_paired([1.0, 2.0, 3.5], [1.0, 2.0, 3.0], identical=True).note
    one_sided = compare_unpaired([2.0, 2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    assert one_sided.df == pytest.approx(2) and not one_sided.note


def test_arms_that_move_exactly_together_have_a_correlation_and_no_interval_of_it():
    result = compare_paired([1.0, 2.0, 4.0, 3.0], [2.0, 4.0, 8.0, 6.0])
    assert result.correlation == pytest.approx(1)
    assert math.isnan(result.correlation_low)


def test_too_few_runs_have_a_difference_and_no_inference():
    paired, unpaired = compare_paired([1.0, 3.0], [0.0, 0.0]), compare_unpaired([1.0, 3.0], [0.0, 1.0, 2.0])
    assert (paired.difference, unpaired.difference) == (2, 1)
    names = ("low", "high", "p_value", "detectable")
    numbers = [getattr(one, name) for one in (paired, unpaired) for name in names]
    assert np.isnan([*numbers, paired.p_sign_flip, paired.correlation, unpaired.df]).all()


def test_interquartile_mean_is_that_of_the_middle_half():
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, -50.0, 4.0]) == 2.5
    assert interquartile_mean([1.0, 2.0, 9.0]) == pytest.approx((1 / 4 * 1 + 2 + 1 / 4 * 9) / 1.5)
    values = np.random.default_rng(0).normal(size=12)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_t_band_is_the_t_interval_at_every_point():
    values = np.random.default_rng(0).normal(size=(5, 3))
    low, high = t_band(values, alpha=0.1)
    for point in range(3):
        assert (low[point], high[point]) == pytest.approx(t_interval(values[:, point], alpha=0.1))
    assert np.isnan(t_band(values[:1])).all()


def test_unpaired_agrees_with_scipy():
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


@settings(max_examples=40)
@given(scores, scores)
def test_swapping_unpaired_arms_mirrors_the_result(treatment, baseline):
    forward, backward = compare_unpaired(treatment, baseline, margin=5), compare_unpaired(baseline, treatment, margin=5)
    assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low), nan_ok=True)
    assert backward.p_value == pytest.approx(forward.p_value, nan_ok=True)
    assert backward.detectable == pytest.approx(forward.detectable, nan_ok=True)
    assert backward.verdict == {"better": "worse", "worse": "better"}.get(forward.verdict, forward.verdict)


def test_runs_without_any_spread_have_no_interval():
    result = compare_unpaired([0.1 + 0.2] * 3, [0.1] * 4)
    assert result.difference == pytest.approx(0.2)
    assert result.verdict == "inconclusive" and "are equal" in result.note
    assert math.isnan(result.low) and math.isnan(result.p_value)
    same = compare_unpaired([0.1 + 0.2] * 3, [0.3] * 3)
    assert (same.difference, same.verdict) == (0, "inconclusive")


@pytest.mark.slow
def test_the_detectable_effect_is_found_80_percent_of_the_time():
    effect = compare_unpaired([-1.0, 0.0, 1.0] * 3, [-1.0, 0.0, 1.0] * 3).detectable / np.std([-1, 0, 1] * 3, ddof=1)
    rng = np.random.default_rng(0)
    pairs = zip(rng.normal(effect, 1, (1000, 9)), rng.normal(0, 1, (1000, 9)), strict=True)
    assert np.mean([compare_unpaired(a, b).verdict == "better" for a, b in pairs]) == pytest.approx(0.8, abs=0.04)
