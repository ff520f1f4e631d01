from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.shelves.laws import ComputeLaw, LawRefusedError, compare_compute_laws, fit_compute_law
from reports.shelves.laws.compute import MOST_CHANCE, noise_p_value
from reports.shelves.laws.entropy import FloatArray
from tests.refusals import refuses
from tests.reports.shelves.laws.curves import ar1

TOKENS = np.geomspace(1e3, 1e6, 14)
NOISE = np.random.default_rng(3).normal(0, 0.01, 14)


def curve(
    tokens: FloatArray, start: float = 35.0, asymptote: float = 80.0, exponent: float = 1.4, midpoint: float = 2e4
) -> FloatArray:
    return np.asarray(start + (asymptote - start) / (1 + (midpoint / tokens) ** exponent))


@pytest.mark.slow
@given(st.floats(20, 60), st.floats(62, 100), st.floats(0.7, 3), st.floats(5e3, 2e5))
def test_points_on_the_sigmoid_give_it_back(start, asymptote, exponent, midpoint):
    law = fit_compute_law(TOKENS, curve(TOKENS, start, asymptote, exponent, midpoint), start)
    assert law.asymptote == pytest.approx(asymptote, rel=1e-3)
    assert law.exponent == pytest.approx(exponent, rel=1e-2)
    assert law.midpoint_tokens == pytest.approx(midpoint, rel=1e-2)
    assert law.r2 == pytest.approx(1)
    assert law.predict(TOKENS) == pytest.approx(curve(TOKENS, start, asymptote, exponent, midpoint), rel=1e-3)


def runs_of_noise(n_runs: int, rng: np.random.Generator, correlation: float = 0.0) -> FloatArray:
    """The scores of runs that differ and do not learn, ten evaluations each."""
    return np.concatenate([0.5 + rng.normal(0, 0.02) + ar1(10, correlation, 0.01, rng) for _ in range(n_runs)])


def accepted(n_runs: int, tokens: FloatArray, draw: Callable[[], FloatArray], start: float | None) -> float:
    """The share of 200 draws of scores, at the `tokens` of each run, that a law is fitted to."""
    count = 0
    for _ in range(200):
        with contextlib.suppress(LawRefusedError):
            fit_compute_law(np.tile(tokens, n_runs), draw(), start, run_lengths=[len(tokens)] * n_runs)
            count += 1
    return count / 200


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
@pytest.mark.parametrize(("n_runs", "start"), [(1, 0.5), (3, 0.5), (6, 0.5), (10, None), (24, 0.5)])
def test_of_noise_at_most_5_percent_is_accepted(n_runs, start, correlation):
    """Whether or not the noise of a run is autocorrelated."""
    rng = np.random.default_rng(0)
    share = accepted(n_runs, np.linspace(2e4, 2e5, 10), lambda: runs_of_noise(n_runs, rng, correlation), start)
    assert share <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("n_runs", [3, 6])
def test_runs_that_learn_are_accepted(n_runs):
    """Ten evaluations with autocorrelated noise of 1 pp, runs that gain 12 pp and differ."""
    rng, tokens = np.random.default_rng(0), np.linspace(2e4, 2e5, 10)

    def draw() -> FloatArray:
        ends = 35 + 12 * (1 + rng.normal(0, 0.1, n_runs))
        return np.concatenate([curve(tokens, 35.0, end, 1.4, 6e4) + ar1(10, 0.5, 1.0, rng) for end in ends])

    assert accepted(n_runs, tokens, draw, 35.0) >= 0.8


@pytest.mark.slow
def test_whole_runs_turned_upside_down_hold_the_level():
    rng, x = np.random.default_rng(0), np.log(np.tile(np.linspace(2e4, 2e5, 10), 6))
    chances = np.array([noise_p_value(x, runs_of_noise(6, rng, 0.8), [10] * 6) for _ in range(300)])
    assert np.mean(chances <= MOST_CHANCE) == pytest.approx(0.05, abs=0.03)


def test_the_spread_of_a_run_does_not_make_it_a_curve():
    """Simulated runs spread as the runs do, so that one noisy run does not count as many."""
    x = np.log(np.tile(np.linspace(2e4, 2e5, 10), 3))
    drift = ar1(10, 0.8, 1.0, np.random.default_rng(5))
    alone = noise_p_value(x[:10], drift, [10])
    assert noise_p_value(x, np.concatenate([drift, np.zeros(20)]), [10] * 3) == pytest.approx(alone, abs=0.05)


def test_noise_is_refused_by_its_chance():
    score = runs_of_noise(3, np.random.default_rng(0))
    with refuses(LawRefusedError, "reports.shelves.laws.noise_fits_as_well"):
        fit_compute_law(np.tile(np.linspace(2e4, 2e5, 10), 3), score, 0.5, run_lengths=[10] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("n_runs", [3, 6, 12])
def test_intervals_over_runs_hold_the_parameters(n_runs):
    """The parameters of runs differ; 100 replicates."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(100):
        scores = [
            curve(
                TOKENS, 35.0, 80 + rng.normal(0, 2), 1.4 * np.exp(rng.normal(0, 0.1)), 2e4 * np.exp(rng.normal(0, 0.2))
            )
            for _ in range(n_runs)
        ]
        score = np.concatenate(scores) + rng.normal(0, 1, 14 * n_runs)
        law = fit_compute_law(np.tile(TOKENS, n_runs), score, 35.0, run_lengths=[14] * n_runs)
        ends = [law.interval(name) for name in ("asymptote", "exponent", "midpoint_tokens")]
        hits.append([low <= true <= high for (low, high), true in zip(ends, (80, 1.4, 2e4), strict=True)])
    assert (np.mean(hits, axis=0) >= 0.88).all()


def law_of(scores: FloatArray) -> ComputeLaw:
    """scores [n_runs, 14]."""
    return fit_compute_law(np.tile(TOKENS, len(scores)), scores.ravel(), 35.0, run_lengths=[14] * len(scores))


def runs_of_two_arms(
    rng: np.random.Generator, n_runs: int, gap: float = 0.0, log_ratio: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """[n_runs, 14] of an arm and of the baseline, whose seeds share where they end and how fast they learn."""
    ends, speeds = 70 + rng.normal(0, 4, n_runs), np.exp(rng.normal(0, 0.2, n_runs))
    base = [curve(TOKENS, 35.0, end, 1.4 * speed, 2e4) for end, speed in zip(ends, speeds, strict=True)]
    arm = [
        curve(TOKENS, 35.0, end + gap + rng.normal(0, 1), 1.4 * speed * np.exp(log_ratio + rng.normal(0, 0.05)), 2e4)
        for end, speed in zip(ends, speeds, strict=True)
    ]
    return np.array(arm) + rng.normal(0, 0.5, (n_runs, 14)), np.array(base) + rng.normal(0, 0.5, (n_runs, 14))


def test_a_difference_of_laws_is_that_of_fits_without_each_seed():
    """Against the jackknife itself: both arms fitted anew without one seed after the other."""
    arm, base = runs_of_two_arms(np.random.default_rng(1), 12, gap=3.0, log_ratio=0.2)
    found = compare_compute_laws(law_of(arm), law_of(base))

    def difference(rows: list[int]) -> tuple[float, float]:
        one, other = law_of(arm[rows]), law_of(base[rows])
        return one.asymptote - other.asymptote, math.log(one.exponent / other.exponent)

    whole = difference([*range(12)])
    left_out = np.array([difference([row for row in range(12) if row != seed]) for seed in range(12)]) - whole
    errors = np.sqrt(11 / 12 * (left_out**2).sum(axis=0))
    t = 2.200985  # of 11 degrees of freedom
    assert found["asymptote"].value == pytest.approx(whole[0])
    assert found["asymptote"].high - whole[0] == pytest.approx(t * errors[0], rel=0.1)
    assert found["exponent"].value == pytest.approx(math.exp(whole[1]))
    assert math.log(found["exponent"].high) - whole[1] == pytest.approx(t * errors[1], rel=0.1)
    assert found["exponent"].low * found["exponent"].high == pytest.approx(found["exponent"].value ** 2)


def test_pairing_takes_out_what_the_seeds_share():
    arm, base = runs_of_two_arms(np.random.default_rng(2), 12)
    law, other = law_of(arm), law_of(base)
    paired = compare_compute_laws(law, other)["asymptote"]
    low, high = law.interval("asymptote")
    assert paired.high - paired.low < 0.6 * (high - low)
    strangers = compare_compute_laws(law, law_of(base[::-1]))["asymptote"]
    assert strangers.high - strangers.low > 1.5 * (paired.high - paired.low)


@pytest.mark.slow
@pytest.mark.parametrize("n_runs", [3, 6, 12])
def test_differences_of_laws_hold_the_true_ones(n_runs):
    rng, hits = np.random.default_rng(0), []
    for _ in range(150):
        arm, base = runs_of_two_arms(rng, n_runs, gap=2.0, log_ratio=0.1)
        found = compare_compute_laws(law_of(arm), law_of(base))
        hits.append([
            found[name].low <= true <= found[name].high
            for name, true in (("asymptote", 2.0), ("exponent", math.exp(0.1)), ("midpoint_tokens", 1.0))
        ])  # fmt: skip
    assert (np.mean(hits, axis=0) >= 0.9).all()


def test_laws_of_single_runs_cannot_be_paired():
    arm, base = runs_of_two_arms(np.random.default_rng(0), 3)
    for one, other in ((arm[:1], base[:1]), (arm, base[:2])):
        with refuses(ValueError, "reports.shelves.laws.runs_do_not_pair"):
            compare_compute_laws(law_of(one), law_of(other))


@pytest.mark.parametrize(
    ("tokens", "score", "start", "code"),
    [
        (TOKENS[:7], curve(TOKENS[:7]), None, "few_points"),
        (TOKENS - 1e3, curve(TOKENS), None, "tokens_not_positive"),
        (TOKENS, [math.nan, *curve(TOKENS)[1:]], None, "points_not_finite"),
        (TOKENS, np.full(14, 3.0), None, "no_curve"),
        (np.full(14, 3.0), curve(TOKENS), None, "no_curve"),
        (TOKENS, curve(TOKENS, midpoint=1e8, exponent=0.8), 35.0, "points_end_before_midpoint"),
        (TOKENS, curve(TOKENS, midpoint=10), None, "points_begin_beyond_midpoint"),
        (TOKENS, np.where(TOKENS < 3e4, 35.0, 80.0) + NOISE, 35.0, "exponent_too_high"),
        (TOKENS, 35 + np.log(TOKENS) + NOISE, None, "exponent_too_low"),
        (TOKENS, curve(TOKENS, midpoint=1, exponent=0.4) + NOISE, 35.0, "midpoint_far_from_points"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(tokens, score, start, code):
    with refuses(LawRefusedError, f"reports.shelves.laws.{code}"):
        fit_compute_law(tokens, score, start)


def test_the_start_is_fitted_where_it_is_not_known():
    law = fit_compute_law(TOKENS, curve(TOKENS))
    assert (law.start, law.asymptote) == pytest.approx((35, 80), abs=0.1)
