"""How often intervals hold and tests err, by simulation; the tables of `reports.statistics` are measured here."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics import FloatArray, compare_paired, compare_unpaired, power, t_band

pytestmark = pytest.mark.slow

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


def coverage(samples: FloatArray, mean: float) -> float:
    """Share of the t intervals of `samples` [n_seeds, replicates] that hold the true mean."""
    low, high = t_band(samples)
    return float(np.mean((low <= mean) & (mean <= high)))


@pytest.mark.parametrize(("n", "percentile"), [(3, 0.76), (5, 0.85), (6, 0.87), (8, 0.88), (10, 0.91), (20, 0.93)])
def test_a_percentile_bootstrap_over_a_few_seeds_is_too_narrow_and_the_t_interval_is_not(n, percentile):
    """Why no interval over seeds is one of percentiles."""
    rng = np.random.default_rng(n)
    samples = rng.normal(0, 1, (n, REPLICATES))
    weights = rng.multinomial(n, np.full(n, 1 / n), size=1000) / n
    low, high = np.quantile(weights @ samples, [0.025, 0.975], axis=0)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(percentile, abs=0.025)
    assert coverage(samples, 0.0) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(
    ("n", "heavy", "collapse"), [(3, 0.96, 0.65), (6, 0.96, 0.48), (10, 0.96, 0.65), (20, 0.955, 0.87)]
)
def test_what_heavy_tails_do_to_the_interval(n, heavy, collapse):
    """Symmetric tails leave it a little too wide; a rare collapse breaks it, as few seeds may show none."""
    rng = np.random.default_rng(n)
    assert coverage(rng.standard_t(3, (n, 10 * REPLICATES)), 0.0) == pytest.approx(heavy, abs=0.01)
    collapsed = rng.random((n, 10 * REPLICATES)) < 0.1
    scores = rng.normal(0, 1, collapsed.shape) - 20 * collapsed
    assert coverage(scores, -2.0) == pytest.approx(collapse, abs=0.02)


@pytest.mark.parametrize(("n", "m"), [(3, 6), (6, 6), (4, 10)])
def test_the_unpaired_comparison_is_calibrated_with_unequal_variances(n, m):
    rng = np.random.default_rng(n)
    treatment, baseline = rng.normal(1, 1, (REPLICATES, n)), rng.normal(0, 2, (REPLICATES, m))
    results = [compare_unpaired(a, b) for a, b in zip(treatment, baseline, strict=True)]
    assert np.mean([c.low <= 1 <= c.high for c in results]) == pytest.approx(0.95, abs=0.02)
    assert all((c.p_value < 0.05) == (not c.low <= 0 <= c.high) for c in results)
