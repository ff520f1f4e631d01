from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from reports.shelves.laws import LawRefusedError, fit_entropy_law, fit_free_exponent
from tests.refusals import refuses
from tests.reports.shelves.laws.curves import law_run


@given(st.floats(0.01, 5) | st.floats(-5, -0.01), st.floats(-3, 3), st.floats(0, 12), st.floats(0.1, 8))
def test_points_on_the_law_give_it_back_at_entropies_of_any_size(a, b, lowest, span):
    entropy = lowest + span * np.linspace(0, 1, 12)
    a /= math.exp(lowest + span)  # so that rewards stay of one size
    law = fit_entropy_law(entropy, b - a * np.exp(entropy))
    assert law.a == pytest.approx(a, rel=1e-6)
    assert law.b == pytest.approx(b, abs=1e-6)
    assert law.ceiling == pytest.approx(b - a, abs=1e-6)
    assert law.r2 == pytest.approx(1)
    assert law.rmse == pytest.approx(0, abs=1e-9)
    assert law.predict([0.0, 1.0]) == pytest.approx(np.array([b - a, b - a * math.e]), abs=1e-5)


def test_the_fit_is_that_of_a_general_optimiser():
    run = law_run(80, np.random.default_rng(0))
    (a, b), _ = curve_fit(lambda h, a, b: -a * np.exp(h) + b, run.entropy, run.reward)
    law = fit_entropy_law(run.entropy, run.reward)
    assert (law.a, law.b) == pytest.approx((a, b))
    residuals = run.reward - law.predict(run.entropy)
    assert law.r2 == pytest.approx(1 - residuals.var() / run.reward.var())
    assert law.n_points == 80


GOOD = np.linspace(0.2, 1.5, 20)


@pytest.mark.parametrize(
    ("entropy", "reward", "code", "fields"),
    [
        (GOOD[:7], GOOD[:7], "few_points", {"n_points": 7, "min_points": 8}),
        ([], [], "few_points", {"n_points": 0}),
        (GOOD, GOOD[:-1], "shapes_differ", {}),
        (GOOD[:, None], GOOD, "shapes_differ", {}),
        ([*GOOD[:-1], math.nan], GOOD, "points_not_finite", {"name": "entropy", "n_bad": 1, "n_points": 20}),
        (GOOD, [math.inf, *GOOD[1:]], "points_not_finite", {"name": "reward", "n_bad": 1, "n_points": 20}),
        (0.5 + 0.01 * GOOD, GOOD, "entropy_span_small", {"min_span_nats": 0.05}),
        ([5.0, *np.full(39, 0.5)], np.arange(40.0), "entropy_span_small", {"span_nats": 0}),
        ([*np.full(19, 0.5), 3.0], np.arange(20.0), "entropy_span_small", {"span_nats": 0}),
        ([*np.full(7, 0.5), 0.1], np.arange(8.0), "entropy_span_small", {"span_nats": 0}),
        (GOOD - 0.5, GOOD, "entropy_below_zero", {}),
        (800 * GOOD, GOOD, "entropy_overflows", {}),
        *((GOOD, np.full(20, reward), "reward_constant", {"reward": reward}) for reward in (0.0, 0.3, 0.7, 1.0)),
    ],
)
@pytest.mark.parametrize("fit", [fit_entropy_law, fit_free_exponent])
def test_what_cannot_be_fitted_is_refused_with_the_reason(fit, entropy, reward, code, fields):
    """A fit of a constant reward would find an a, and an R2, in rounding errors."""
    with refuses(LawRefusedError, f"reports.shelves.laws.{code}", **fields):
        fit(entropy, reward)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.5, -1.0])
def test_the_free_exponent_is_found(exponent):
    entropy = np.linspace(0.2, 2.0, 60)
    reward = 3 - np.sign(exponent) * 0.4 * np.exp(exponent * entropy)
    found = fit_free_exponent(entropy, reward)
    assert found.exponent == pytest.approx(exponent, rel=1e-3)
    assert found.ceiling == pytest.approx(3 - np.sign(exponent) * 0.4, rel=1e-3)
    assert found.r2 == pytest.approx(1)


def test_the_free_exponent_fits_no_worse_than_the_law():
    for seed in range(10):
        run = law_run(60, np.random.default_rng(seed))
        assert fit_free_exponent(run.entropy, run.reward).r2 >= fit_entropy_law(run.entropy, run.reward).r2 - 1e-6


def test_a_step_has_no_exponent():
    entropy = np.linspace(0.2, 2.0, 60)
    with refuses(LawRefusedError, "reports.shelves.laws.free_exponent_runs_off"):
        fit_free_exponent(entropy, (entropy >= 2.0).astype(float))


def test_a_line_in_the_entropy_has_exponent_0():
    entropy = np.linspace(0.2, 2.0, 60)
    found = fit_free_exponent(entropy, 1 - 0.3 * entropy)
    assert found.exponent == pytest.approx(0, abs=1e-3)
    assert found.ceiling == pytest.approx(1, abs=1e-3)
