from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from reports.statistics import compare_paired, difference_sd, power, sd_upper_bound
from reports.statistics.power_analysis import t_test_power


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


@pytest.mark.parametrize("df", [1, 2, 10, 20, 2000])
def test_power_has_a_value_however_far_out(df):
    for alpha, shift in itertools.product([0.2, 0.05, 0.01], [0.0, 1.0, 7.75, 8.0, 8.75, 9.75, 39.2452830189, 1000.0]):
        critical = stats.t.ppf(1 - alpha / 2, df)
        both = stats.nct.sf(critical, df, shift) + stats.nct.sf(critical, df, -shift)
        assert t_test_power(shift, df, alpha) == pytest.approx(both, abs=1e-8)


@pytest.mark.parametrize(("correlation", "seeds"), [(0.0, 18), (0.6, 9), (0.8, 6)])
def test_seeds_needed_for_2_pp_at_a_run_to_run_sd_of_2_pp(correlation, seeds):
    assert power(difference_sd(2.0, correlation), effect=2.0).n == seeds


def test_power_is_just_reached_at_the_seeds_needed():
    needed = power(1.0, effect=0.5).n
    assert power(1.0, effect=0.5, n=needed).power >= 0.8 > power(1.0, effect=0.5, n=needed - 1).power


def test_the_upper_bound_of_an_sd_holds_as_often_as_it_says():
    sds = np.random.default_rng(0).normal(0, 3, (20_000, 5)).std(axis=1, ddof=1)
    assert np.mean([sd_upper_bound(sd, 5) >= 3 for sd in sds]) == pytest.approx(0.8, abs=0.01)
    assert sd_upper_bound(1.0, 5) == pytest.approx(math.sqrt(4 / stats.chi2.ppf(0.2, 4)))


def test_detectable_follows_the_spread_of_the_differences():
    treatment, baseline = [1.0, 4.0, 2.0, 6.0, 3.0], [0.0] * 5
    assert compare_paired(treatment, baseline).detectable == pytest.approx(
        power(float(np.std(treatment, ddof=1)), n=5).effect
    )
