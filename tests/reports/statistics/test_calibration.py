"""How often intervals hold and tests err, by simulation; `benchmarks/calibration.py` measures it in more detail."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics import FloatArray, compare_paired, compare_unpaired, over_seeds_and_problems, power, t_band

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


@pytest.mark.parametrize(
    ("n", "heavy", "collapse"), [(3, 0.96, 0.65), (6, 0.96, 0.48), (10, 0.96, 0.65), (24, 0.955, 0.915)]
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


def alike(rng: np.random.Generator, n: int, n_problems: int, n_samples: int) -> tuple[FloatArray, FloatArray]:
    """Scores of two arms that are equally good [n], in percent: right answers to problems of Beta difficulties."""
    chance = rng.beta(1, 1, (n_problems, 1))
    one, other = (100 * (rng.random((n, n_problems, n_samples)) < chance).mean(axis=(1, 2)) for _ in range(2))
    return one, other


def test_the_grid_of_scores_gives_no_false_verdicts():
    """Three seeds of 30 single answers at alpha / 5: the t interval alone errs in 1.5 %, of which equal differences are
    the most; the rule of one quantum leaves less than the level."""
    rng, alpha = np.random.default_rng(0), 0.05 / 5
    pairs = [alike(rng, 3, 30, 1) for _ in range(2 * REPLICATES)]
    low, high = t_band(np.column_stack([one - other for one, other in pairs]), alpha)
    assert np.mean((low > 1e-9) | (high < -1e-9)) > 0.011
    for quantum, at_most in ((0.0, alpha), (100 / 30, 0.002)):
        verdicts = [compare_paired(one, other, alpha, quantum=quantum).verdict for one, other in pairs]
        assert np.mean([verdict in ("better", "worse") for verdict in verdicts]) <= at_most


def test_arms_that_differ_by_the_margin_are_seldom_called_equivalent():
    """With a margin of three steps and no spread to speak of: 98 of 100 problems are always or never solved."""
    rng, erred = np.random.default_rng(0), 0
    chance = np.r_[np.zeros(49), np.ones(49), 0.5, 0.5][:, None]
    for _ in range(REPLICATES):
        one, other = (100 * (rng.random((3, 100, 1)) < chance).mean(axis=(1, 2)) for _ in range(2))
        erred += compare_paired(one + 3, other, margin=3.0, quantum=1.0).verdict == "equivalent"
    assert erred / REPLICATES <= 0.025


@pytest.mark.parametrize("n_seeds", [3, 12])
@pytest.mark.parametrize(("seeds_pp", "problems_pp"), [(0, 0), (0, 10), (5, 5)])
def test_the_interval_over_new_problems_holds_its_level(n_seeds, seeds_pp, problems_pp):
    """Right and wrong answers to 30 new problems, 4 samples of each; where a component is zero too."""
    rng, held = np.random.default_rng(n_seeds), []
    for _ in range(REPLICATES):
        chance = rng.beta(1, 1, 30)
        half = (rng.normal(0, seeds_pp, (n_seeds, 1)) + rng.normal(0, problems_pp, 30)) / 200
        right = [(rng.random((n_seeds, 30, 4)) < (chance + side * half)[..., None]).mean(axis=2) for side in (1, -1)]
        estimate = over_seeds_and_problems(right[0] - right[1])
        held.append(estimate.low <= 0 <= estimate.high)
    assert np.mean(held) == pytest.approx(0.955, abs=0.025)
