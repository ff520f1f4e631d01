"""Against populations whose moments are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.shelves.probe.moments import (
    Array,
    InnerProducts,
    Statistic,
    Statistics,
    exponential,
    reference_statistics,
    statistics,
)

DIMENSIONS, ESTIMATES, REFERENCES, BLOCKS = 40, 32, 16, 8
COSINE, NOISE = 0.8, 6.0


def products(estimates: Array, references: Array, blocks: int = BLOCKS) -> InnerProducts:
    """estimates [R, D], references [M, D]"""
    block = np.arange(len(estimates)) * blocks // len(estimates)
    sums = np.stack([estimates[block == index].sum(0) for index in range(blocks)])
    return InnerProducts(
        np.linalg.norm(estimates, axis=1), block, sums @ sums.T, estimates @ references.T, references @ references.T
    )


def sample(seed: int, per_estimate: int = 1) -> tuple[Array, Array]:
    """Means of norm 2 and 3 at a known angle; the noise of an estimate is NOISE / per_estimate of its signal."""
    rng = np.random.default_rng(seed)
    gamma = np.zeros(DIMENSIONS)
    gamma[0] = 3.0
    mu = np.zeros(DIMENSIONS)
    mu[:2] = 2 * COSINE, 2 * (1 - COSINE**2) ** 0.5
    sd = (NOISE * 4 / DIMENSIONS) ** 0.5
    drawn = rng.normal(0, sd, (ESTIMATES, per_estimate, DIMENSIONS)).mean(1)
    return mu + drawn, gamma + rng.normal(0, 1.0, (REFERENCES, DIMENSIONS))


def measured(seed: int, per_estimate: int = 1) -> Statistics:
    return statistics(products(*sample(seed, per_estimate)))


@pytest.fixture(scope="module")
def many() -> list[Statistics]:
    return [measured(seed) for seed in range(120)]


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values) / len(values) ** 0.5)


def test_known_moments_are_found_without_bias(many: list[Statistics]) -> None:
    for name, truth in (("cosine", COSINE), ("noise_to_signal", NOISE), ("mean_norm", 2.0)):
        mean, error = mean_and_error([getattr(found, name).value for found in many])
        assert mean == pytest.approx(truth, abs=4 * error), name
        assert error < 0.03 * truth


def test_the_cosine_of_one_estimate_is_that_of_the_simulation(many: list[Statistics]) -> None:
    estimates = np.concatenate([sample(seed)[0] for seed in range(120)])
    truth = float((estimates[:, 0] / np.linalg.norm(estimates, axis=1)).mean())
    mean, error = mean_and_error([found.estimate_cosine.value for found in many])
    assert mean == pytest.approx(truth, abs=4 * error)
    assert error < 0.01


def test_intervals_hold_the_truth_about_as_often_as_they_say_and_are_not_much_too_wide(many: list[Statistics]) -> None:
    cosines = [found.cosine.interval() for found in many]
    noises = [exponential(found.noise_to_signal.log().interval()) for found in many]
    for truth, intervals in ((COSINE, cosines), (NOISE, noises)):
        held = [low < truth < high for _, low, high in intervals if low is not None and high is not None]
        assert len(held) == len(many)
        assert 0.9 < np.mean(held) <= 1
    spread = float(np.std([found.cosine.value for found in many]))
    halves = [(high - low) / 2 for _, low, high in cosines if low and high]
    assert np.median(halves) < 2.36 * spread * 1.4


@settings(max_examples=20)
@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 50))
def test_a_factor_changes_the_norm_only(factor: float, seed: int) -> None:
    estimates, references = sample(seed)
    found, scaled = statistics(products(estimates, references)), statistics(products(factor * estimates, references))
    for name in ("cosine", "noise_to_signal", "estimate_cosine"):
        assert getattr(scaled, name).value == pytest.approx(getattr(found, name).value)
        difference = (getattr(scaled, name) - getattr(found, name)).interval()
        assert difference == pytest.approx((0, 0, 0), abs=1e-9)
    assert scaled.mean_norm.value == pytest.approx(factor * found.mean_norm.value)


def test_nothing_is_said_where_noise_hides_the_mean() -> None:
    """Estimates that add up to nothing: |mu|^2 is estimated below 0."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(ESTIMATES // 2, DIMENSIONS))
    found = statistics(products(np.concatenate([half, -half]), rng.normal(size=(REFERENCES, DIMENSIONS)) + 3))
    assert found.cosine.interval() == (None, None, None)
    assert exponential(found.noise_to_signal.log().interval()) == (None, None, None)
    assert found.estimate_cosine.interval().value is not None


def test_an_estimate_of_length_zero_counts_as_no_direction() -> None:
    estimates, references = sample(0)
    estimates[::2] = 0
    found = statistics(products(estimates, references))
    alone = statistics(products(estimates[1::2], references))
    assert found.estimate_cosine.value == pytest.approx(alone.estimate_cosine.value / 2)


def test_the_interval_is_students_t_over_the_jackknife() -> None:
    """By hand: 3 blocks, 2 reference estimates, so one degree of freedom."""
    statistic = Statistic(1.0, np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.5]))
    value, low, high = statistic.interval()
    # (3 - 1) / 3 x 2 + (2 - 1) / 2 x 0.5 = 1.583
    assert value == 1.0 and low is not None and high is not None
    assert high - 1 == pytest.approx(12.7062 * (4 / 3 + 1 / 4) ** 0.5, rel=1e-4)
    assert 1 - low == pytest.approx(high - 1)
    met_a_hidden_mean = Statistic(0.5, np.array([0.4, np.nan, 0.6]), np.array([0.5, 0.5]))
    assert met_a_hidden_mean.interval() == (0.5, None, None)


def test_the_reference_tells_its_own_noise() -> None:
    grams = [references @ references.T for _, references in map(sample, range(60))]
    found = [told for told in map(reference_statistics, grams) if told is not None]
    assert len(found) == 60
    norms, noises = zip(*found, strict=True)
    mean, error = mean_and_error(list(norms))
    assert mean == pytest.approx(3.0, abs=4 * error)
    # Variance 40 over 16 estimates and a squared norm of 9.
    mean, error = mean_and_error(list(noises))
    assert mean == pytest.approx(40 / 16 / 9, abs=4 * error)

    opposed = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert reference_statistics(opposed) is None


def test_too_few_blocks_are_refused() -> None:
    estimates, references = sample(0)
    for too_few in (products(estimates, references, blocks=1), products(estimates, references[:1])):
        with pytest.raises(ValueError):
            statistics(too_few)
