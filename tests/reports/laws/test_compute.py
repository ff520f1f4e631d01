from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.laws import LawRefusedError, fit_compute_law
from reports.laws.points import FloatArray

TOKENS = np.geomspace(1e3, 1e6, 14)
NOISE = np.random.default_rng(3).normal(0, 0.01, 14)


def curve(
    tokens: FloatArray, start: float = 35.0, asymptote: float = 80.0, exponent: float = 1.4, midpoint: float = 2e4
) -> FloatArray:
    return np.asarray(start + (asymptote - start) / (1 + (midpoint / tokens) ** exponent))


@given(st.floats(20, 60), st.floats(62, 100), st.floats(0.7, 3), st.floats(5e3, 2e5))
def test_points_on_the_sigmoid_give_it_back(start, asymptote, exponent, midpoint):
    law = fit_compute_law(TOKENS, curve(TOKENS, start, asymptote, exponent, midpoint), start)
    assert law.asymptote == pytest.approx(asymptote, rel=1e-3)
    assert law.exponent == pytest.approx(exponent, rel=1e-2)
    assert law.midpoint_tokens == pytest.approx(midpoint, rel=1e-2)
    assert law.r2 == pytest.approx(1)
    assert law.predict(TOKENS) == pytest.approx(curve(TOKENS, start, asymptote, exponent, midpoint), rel=1e-3)


def test_the_start_is_fitted_where_it_is_not_known():
    law = fit_compute_law(TOKENS, curve(TOKENS))
    assert (law.start, law.asymptote) == pytest.approx((35, 80), abs=0.1)


def test_noise_leaves_the_asymptote_where_it_is():
    noisy = curve(TOKENS) + np.random.default_rng(0).normal(0, 0.5, len(TOKENS))
    law = fit_compute_law(TOKENS, noisy, 35.0)
    assert law.asymptote == pytest.approx(80, abs=2)
    assert 0.98 < law.r2 < 1
    assert law.n_points == 14


@pytest.mark.parametrize("start", [None, 0.5])
def test_of_noise_alone_no_law_is_shown_whose_parameters_are_those_of_the_bounds(start):
    exponents = []
    for seed in range(6):
        with contextlib.suppress(LawRefusedError):
            noise = 0.5 + np.random.default_rng(seed).normal(0, 0.01, 20)
            exponents.append(fit_compute_law(np.linspace(1e4, 2e5, 20), noise, start).exponent)
    assert all(0.2 < exponent < 19.8 for exponent in exponents)


def test_a_score_that_falls_has_an_asymptote_below_its_start():
    law = fit_compute_law(TOKENS, curve(TOKENS, start=60.0, asymptote=20.0), 60.0)
    assert law.asymptote == pytest.approx(20, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "score", "start", "match"),
    [
        (TOKENS[:7], curve(TOKENS[:7]), None, "7 points"),
        (TOKENS - 1e3, curve(TOKENS), None, "must be above 0"),
        (TOKENS, [math.nan, *curve(TOKENS)[1:]], None, "score is not finite at 1 of 14"),
        (TOKENS, np.full(14, 3.0), None, "constant"),
        (np.full(14, 3.0), curve(TOKENS), None, "constant"),
        (TOKENS, curve(TOKENS, midpoint=1e8, exponent=0.8), 35.0, "end before the sigmoid's midpoint"),
        (TOKENS, curve(TOKENS, midpoint=10), None, "begin beyond the sigmoid's midpoint"),
        (TOKENS, np.where(TOKENS < 3e4, 35.0, 80.0) + NOISE, 35.0, "exponent runs to 20: a step between two points"),
        (TOKENS, 35 + np.log(TOKENS) + NOISE, None, "exponent falls to .*: the points have no bend"),
        (TOKENS, curve(TOKENS, midpoint=1, exponent=0.4) + NOISE, 35.0, "midpoint runs to 1 tokens"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(tokens, score, start, match):
    with pytest.raises(LawRefusedError, match=match):
        fit_compute_law(tokens, score, start)
