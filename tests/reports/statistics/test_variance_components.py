"""The split of a difference's variance, and means over new problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.statistics import components, components_of_problems, over_seeds_and_problems, t_interval
from reports.statistics.variance_components import PARTS

KNOWN = {"seeds": 2.0, "seeds_x_problems": 3.0, "sampling": 16.0, "problems": 5.0}
"""Variances; that of sampling is of a single sample."""


def samples(rng: np.random.Generator, n_seeds: int, n_problems: int, n_samples: int, known=KNOWN) -> np.ndarray:
    """Paired differences of single samples [n_seeds, n_problems, n_samples] with these parts around 7."""
    shapes = {
        "seeds": (n_seeds, 1, 1),
        "seeds_x_problems": (n_seeds, n_problems, 1),
        "sampling": (n_seeds, n_problems, n_samples),
        "problems": (1, n_problems, 1),
    }
    drawn = np.full((n_seeds, n_problems, n_samples), 7.0)
    for name, shape in shapes.items():
        drawn += rng.normal(0, math.sqrt(known[name]), shape)
    return drawn


def split(drawn: np.ndarray, **options):
    n_samples = drawn.shape[2]
    return components(drawn.mean(axis=2), drawn.var(axis=2, ddof=1) / n_samples, n_samples=n_samples, **options)


@pytest.fixture(scope="module")
def replicates():
    rng = np.random.default_rng(0)
    return [split(samples(rng, 8, 40, 4)) for _ in range(250)]


@pytest.mark.parametrize("name", PARTS)
def test_each_known_part_is_recovered_within_a_tenth_and_its_interval_holds_it(replicates, name):
    truth = KNOWN[name] / (4 if name == "sampling" else 1)
    assert np.mean([getattr(found, name).value for found in replicates]) == pytest.approx(truth, rel=0.1)
    held = [getattr(found, name).low <= truth <= getattr(found, name).high for found in replicates]
    assert np.mean(held) == pytest.approx(0.95, abs=0.035)


def test_over_one_checkpoint_seeds_are_samples_and_only_problems_and_sampling_have_parts():
    """A difference has the variance of problems, and that of a sample over all that were drawn of the problem."""
    known = KNOWN | {"seeds": 0.0, "seeds_x_problems": 0.0}
    rng = np.random.default_rng(1)
    replicates = [components_of_problems(samples(rng, 2, 40, 4, known)) for _ in range(250)]
    for name, truth in (("problems", 5.0), ("sampling", 16 / 4)):
        assert np.mean([getattr(found, name).value for found in replicates]) == pytest.approx(truth, rel=0.1)
        held = [getattr(found, name).low <= truth <= getattr(found, name).high for found in replicates]
        assert np.mean(held) == pytest.approx(0.95, abs=0.035)
    errors = [found.error_of_mean(2, 100, 16, new_problems=True).value for found in replicates]
    assert np.mean(errors) == pytest.approx(math.sqrt(5 / 100 + 16 / (2 * 16 * 100)), rel=0.05)
    assert set(replicates[0].parts_of_mean()) == {"sampling", "problems"}
    single = components_of_problems(samples(rng, 1, 40, 1, known))
    assert not single.sampling_known and set(single.parts_of_mean()) == {"problems"}


def test_the_error_of_another_design_is_that_of_its_parts(replicates):
    truth = math.sqrt(2 / 24 + 3 / (24 * 100) + 16 / (24 * 100 * 16))
    found = [one.error_of_mean(24, 100, 16) for one in replicates]
    assert np.mean([one.value for one in found]) == pytest.approx(truth, rel=0.1)
    assert np.mean([one.low <= truth <= one.high for one in found]) == pytest.approx(0.95, abs=0.035)
    over_new = replicates[0].error_of_mean(24, 100, 16, new_problems=True).value
    assert over_new**2 - found[0].value ** 2 == pytest.approx(replicates[0].problems.value / 100)


def test_shares_are_of_the_variance_of_the_mean():
    drawn = samples(np.random.default_rng(1), 6, 30, 4)
    found = split(drawn)
    for new_problems in (True, False):
        parts = found.parts_of_mean(new_problems=new_problems)
        assert ("problems" in parts) is new_problems
        assert sum(part.share.value for part in parts.values()) == pytest.approx(1)
        error = found.error_of_mean(new_problems=new_problems).value
        assert math.hypot(*(part.sd.value for part in parts.values())) == pytest.approx(error)
    # Over these problems it is the error of the t interval, if no part was cut at zero.
    low, high = t_interval(drawn.mean(axis=(1, 2)))
    assert found.error_of_mean().value == pytest.approx((high - low) / 2 / 2.570582)


def test_one_sample_a_cell_cannot_tell_sampling_from_what_a_seed_does_to_a_problem():
    found = components(samples(np.random.default_rng(2), 6, 30, 1)[:, :, 0])
    assert not found.sampling_known and math.isnan(found.sampling.value)
    assert list(found.parts_of_mean()) == ["seeds", "seeds_x_problems", "problems"]
    assert found.error_of_mean(12).value < found.error_of_mean().value
    with pytest.raises(ValueError):
        found.error_of_mean(n_samples=4)


def test_differences_that_are_all_equal_have_no_variance_and_no_interval():
    table = np.full((4, 7), 100 / 3)
    table[1, 2] *= 1 + 1e-15  # what subtracting scores leaves
    found = components(table)
    assert found.error_of_mean(new_problems=True).high == 0
    assert math.isnan(found.parts_of_mean()["seeds"].share.value)
    estimate = over_seeds_and_problems(table)
    assert estimate.difference == pytest.approx(100 / 3) and math.isnan(estimate.low)


@given(st.integers(0, 1000), st.floats(0.1, 100))
def test_the_unit_is_that_of_the_scores_and_order_means_nothing(seed, scale):
    drawn = samples(np.random.default_rng(seed), 4, 9, 3)
    found, scaled = split(drawn), split(scale * drawn[::-1, ::-1])
    for name in PARTS:
        assert getattr(scaled, name).value == pytest.approx(scale**2 * getattr(found, name).value, abs=1e-9)
    estimate, other = (over_seeds_and_problems(table.mean(axis=2)) for table in (drawn, scale * drawn[::-1, ::-1]))
    assert (other.low, other.high) == pytest.approx((scale * estimate.low, scale * estimate.high))


def test_few_seeds_have_a_difference_over_new_problems_and_no_interval():
    table = np.random.default_rng(0).normal(size=(2, 9))
    estimate = over_seeds_and_problems(table)
    assert estimate.difference == pytest.approx(table.mean()) and math.isnan(estimate.low)


def test_the_error_is_that_of_the_two_way_layout():
    """Without noise of single cells its square is the variances of seeds and problems over their numbers."""
    rng = np.random.default_rng(0)
    seeds, problems = rng.normal(0, 1, 8), rng.normal(0, 4, 50)
    estimate = over_seeds_and_problems(seeds[:, None] + problems)
    assert estimate.standard_error**2 == pytest.approx(seeds.var(ddof=1) / 8 + problems.var(ddof=1) / 50)


def test_problems_that_all_agree_leave_the_seeds():
    seeds = np.array([1.0, 2.0, 4.0, 5.0])
    estimate = over_seeds_and_problems(seeds[:, None] + np.zeros(40))
    assert (estimate.low, estimate.high) == pytest.approx(t_interval(seeds))
    assert estimate.df == pytest.approx(3)
