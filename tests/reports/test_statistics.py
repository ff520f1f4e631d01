from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.statistics import (
    compare_paired,
    difference_sd,
    holm,
    interquartile_mean,
    power,
    sign_flip_p_value,
    t_band,
    t_interval,
)

REPLICATES = 2000


@pytest.fixture(scope="module", params=[3, 6, 10])
def simulated(request):
    """Comparisons of arms that differ by exactly 0, with normal paired differences around a shared seed effect."""
    n = request.param
    rng = np.random.default_rng(n)
    shared = rng.normal(50, 5, (REPLICATES, n))
    treatment, baseline = shared + rng.normal(0, 1, (REPLICATES, n)), shared + rng.normal(0, 1, (REPLICATES, n))
    return [compare_paired(a, b) for a, b in zip(treatment, baseline, strict=True)]


def test_the_95_percent_interval_covers_the_truth_95_percent_of_the_time(simulated):
    covered = np.mean([c.low <= 0 <= c.high for c in simulated])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_a_null_comparison_is_significant_5_percent_of_the_time_half_on_each_side(simulated):
    assert np.mean([c.p_value < 0.05 for c in simulated]) == pytest.approx(0.05, abs=0.015)
    for verdict in ("better", "worse"):
        assert np.mean([c.verdict == verdict for c in simulated]) == pytest.approx(0.025, abs=0.015)


def test_interval_and_p_value_agree(simulated):
    assert all((c.p_value < 0.05) == (not c.low <= 0 <= c.high) for c in simulated)


@pytest.mark.parametrize("n", [6, 10])
def test_the_detectable_effect_is_found_80_percent_of_the_time(n):
    effect = power(1.0, n=n).effect
    differences = np.random.default_rng(n).normal(effect, 1, (REPLICATES, n))
    found = np.mean([compare_paired(d, np.zeros(n)).verdict == "better" for d in differences])
    assert found == pytest.approx(0.8, abs=0.03)


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


@given(st.data(), scores)
def test_swapping_the_arms_mirrors_the_result(data, treatment):
    baseline = data.draw(st.lists(st.integers(-1000, 1000), min_size=len(treatment), max_size=len(treatment)))
    forward, backward = compare_paired(treatment, baseline, margin=5), compare_paired(baseline, treatment, margin=5)
    assert backward.difference == pytest.approx(-forward.difference)
    assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low))
    assert backward.p_value == pytest.approx(forward.p_value)
    assert backward.p_sign_flip == forward.p_sign_flip
    mirrored = {"better": "worse", "worse": "better"}
    assert backward.verdict == mirrored.get(forward.verdict, forward.verdict)


@given(scores, st.floats(0.5, 100))
def test_the_unit_is_that_of_the_inputs(treatment, scale):
    baseline = [float(i * i % 7) for i in range(len(treatment))]
    result = compare_paired(treatment, baseline)
    scaled = compare_paired([scale * x for x in treatment], [scale * x for x in baseline])
    for name in ("difference", "low", "high", "median", "iqm", "detectable"):
        assert getattr(scaled, name) == pytest.approx(scale * getattr(result, name), nan_ok=True, abs=1e-9)
    assert scaled.p_value == pytest.approx(result.p_value)


@pytest.mark.parametrize(
    ("differences", "margin", "identical", "verdict"),
    [
        ([1.0, 2.0, 1.5], None, True, "identical"),
        ([0.0, 0.0, 0.0], 1.0, True, "identical"),
        ([0.0], None, True, "identical"),
        ([5.0], None, False, "no_test"),
        ([5.0, 5.1], 100.0, False, "no_test"),
        ([0.5, 0.6, 0.55], 1.0, False, "better"),  # inside the margin, but above zero
        ([-0.5, -0.6, -0.55], 1.0, False, "worse"),
        ([-0.1, 0.0, 0.12], 1.0, False, "equivalent"),
        ([-0.1, 0.0, 0.12], 0.1, False, "inconclusive"),
        ([-0.1, 0.0, 0.12], None, False, "inconclusive"),
        ([0.5, 0.5, 0.5], 1.0, False, "better"),
        ([-0.5, -0.5, -0.5], 1.0, False, "worse"),
        ([0.0, 0.0, 0.0], 1.0, False, "equivalent"),
        ([0.0, 0.0, 0.0], None, False, "inconclusive"),
    ],
)
def test_verdicts_by_precedence(differences, margin, identical, verdict):
    baseline = [3.0, 4.0, 5.0][: len(differences)]
    treatment = [b + d for b, d in zip(baseline, differences, strict=True)]
    assert compare_paired(treatment, baseline, margin=margin, identical=identical).verdict == verdict


def test_equal_differences_give_a_zero_width_interval_in_spite_of_rounding():
    treatment, baseline = [0.41, 0.51, 0.61], [0.38, 0.48, 0.58]
    assert len({a - b for a, b in zip(treatment, baseline, strict=True)}) > 1  # floating point
    result = compare_paired(treatment, baseline)
    assert result.low == result.high == result.difference == pytest.approx(0.03)
    assert (result.verdict, result.note, result.p_value) == ("better", "no spread", 0.0)
    assert math.isnan(result.detectable)


def test_equal_scores_without_known_digests_have_no_spread_and_no_significance():
    result = compare_paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], margin=1.0)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)
    assert (result.p_sign_flip, result.verdict, result.note) == (1, "equivalent", "no spread")


def test_equal_weights_with_different_scores_are_pointed_out():
    result = compare_paired([1.0, 2.0, 3.5], [1.0, 2.0, 3.0], identical=True)
    assert "not deterministic" in result.note


def test_two_pairs_have_a_difference_and_no_inference():
    result = compare_paired([1.0, 3.0], [0.0, 0.0])
    assert result.difference == 2
    for name in ("low", "high", "p_value", "p_sign_flip", "correlation", "detectable"):
        assert math.isnan(getattr(result, name))


@pytest.mark.parametrize(
    ("differences", "p"),
    [([1.0, 2.0, -3.0], 1.0), ([3.0, 1.0, -0.5], 0.5), ([1.0] * 5, 0.0625), ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.03125)],
)
def test_sign_flip_p_for_a_few_pairs(differences, p):
    assert sign_flip_p_value(differences) == p


@pytest.mark.parametrize("n", range(3, 17))
def test_sign_flip_floor(n):
    assert sign_flip_p_value(np.arange(1.0, n + 1)) == 2.0 ** (1 - n)


def test_drawn_sign_flips_agree_with_all_of_them():
    differences = np.random.default_rng(0).normal(0.3, 1, 17)
    patterns = np.array(list(itertools.product([-1, 1], repeat=17)))
    exact = np.mean(np.abs(patterns @ differences) >= abs(differences.sum()) - 1e-12)
    assert sign_flip_p_value(differences) == pytest.approx(exact, abs=0.005)
    assert sign_flip_p_value(differences) == sign_flip_p_value(differences)


def test_interquartile_mean_drops_whole_values_at_both_ends():
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, -50.0, 4.0]) == 2.5
    assert interquartile_mean([1.0, 2.0, 9.0]) == 4
    values = np.random.default_rng(0).normal(size=11)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_holm_by_hand():
    # Sorted .005 .01 .03 .04 times 4 3 2 1 is .02 .03 .06 .04; the running maximum lifts the last to .06.
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.6]), [1, 1])
    assert holm([]).shape == (0,)


@pytest.mark.parametrize("bad", [[math.nan], [-0.1], [1.1]])
def test_holm_refuses_what_is_no_p_value(bad):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        holm(bad)


@pytest.mark.parametrize(("n", "sds"), [(3, 3.3), (5, 1.7), (6, 1.44), (8, 1.16), (10, 1.0), (20, 0.66)])
def test_detectable_effects_of_the_specification(n, sds):
    assert power(1.0, n=n).effect == pytest.approx(sds, rel=0.015)


def test_detectable_effect_agrees_with_an_independent_noncentral_t():
    effect, n, alpha = power(2.0, n=7, alpha=0.025).effect, 7, 0.025
    # P(|Z + nc| > c * chi / sqrt(df)), averaged over the chi distribution by quadrature.
    grid = (np.arange(200_000) + 0.5) / 200_000
    threshold = stats.t.ppf(1 - alpha / 2, n - 1) * stats.chi.ppf(grid, n - 1) / math.sqrt(n - 1)
    noncentrality = effect / 2.0 * math.sqrt(n)
    reached = np.mean(stats.norm.sf(threshold - noncentrality) + stats.norm.cdf(-threshold - noncentrality))
    assert reached == pytest.approx(0.8, abs=1e-4)


@pytest.mark.parametrize(("correlation", "seeds"), [(0.0, 18), (0.6, 9), (0.8, 6)])
def test_seeds_needed_for_2_pp_at_a_run_to_run_sd_of_2_pp(correlation, seeds):
    assert power(difference_sd(2.0, correlation), effect=2.0).n == seeds


def test_power_is_just_reached_at_the_seeds_needed():
    needed = power(1.0, effect=0.5).n
    assert power(1.0, effect=0.5, n=needed).power >= 0.8 > power(1.0, effect=0.5, n=needed - 1).power


def test_detectable_follows_the_spread_of_the_differences():
    treatment, baseline = [1.0, 4.0, 2.0, 6.0, 3.0], [0.0] * 5
    assert compare_paired(treatment, baseline).detectable == pytest.approx(
        power(float(np.std(treatment, ddof=1)), n=5).effect
    )


def test_t_band_is_the_t_interval_at_every_point():
    values = np.random.default_rng(0).normal(size=(5, 3))
    low, high = t_band(values, alpha=0.1)
    for point in range(3):
        assert (low[point], high[point]) == pytest.approx(t_interval(values[:, point], alpha=0.1))
    assert np.isnan(t_band(values[:1])).all()


@pytest.mark.parametrize(
    ("treatment", "baseline", "match"),
    [
        ([1.0, 2.0], [1.0], "2 scores and baseline 1"),
        ([], [], "non-empty"),
        ([1.0, math.nan, 2.0], [1.0, 2.0, 3.0], r"treatment is not finite at positions \[1\]"),
        ([1.0, 1.0], [1.0, math.inf], "baseline is not finite"),
        ([[1.0]], [[1.0]], "shape"),
    ],
)
def test_bad_scores_are_refused(treatment, baseline, match):
    with pytest.raises(ValueError, match=match):
        compare_paired(treatment, baseline)


@pytest.mark.parametrize(("alpha", "margin"), [(0.0, None), (1.0, None), (0.05, -1.0), (0.05, math.nan)])
def test_bad_settings_are_refused(alpha, margin):
    with pytest.raises(ValueError, match=r"alpha is|margin is"):
        compare_paired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], alpha=alpha, margin=margin)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"effect": 0.0}, {"n": 2}, {"effect": 1.0, "target": 1.0}, {"effect": 1.0, "target": 0.01}],
)
def test_power_refuses_what_has_no_answer(arguments):
    with pytest.raises(ValueError, match=r"effect|n is|target"):
        power(1.0, **arguments)
    with pytest.raises(ValueError, match="sd is 0"):
        power(0.0, effect=1.0)
