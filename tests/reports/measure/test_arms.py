from __future__ import annotations

from dataclasses import replace

import pytest

from reports.measure import analyse
from reports.measure.arms import ArmSummary, hidden_knob_warnings
from tests.reports.synthetic import write_sweep


@pytest.fixture(scope="module")
def arms(tmp_path_factory) -> list[ArmSummary]:
    changes = {("base", seed): {"score": score} for seed, score in enumerate([0.4, 0.5, 0.6])}
    folder = tmp_path_factory.mktemp("sweep")
    return analyse(write_sweep(folder, {"base": 0.0, "up": 3.0}, seeds=3, changes=changes, budget_tokens=160_000)).arms


def test_score_and_t_interval_over_seeds(arms):
    base = arms[0]
    assert (base.mean_pp, base.n) == (pytest.approx(50), 3)
    half_width = 4.302653 * 10 / 3**0.5
    assert (base.low_pp, base.high_pp) == pytest.approx((50 - half_width, 50 + half_width))


def test_two_seeds_have_no_interval(tmp_path):
    (arm,) = analyse(write_sweep(tmp_path, {"base": 0.0}, seeds=2)).arms
    assert (arm.n, arm.low_pp, arm.high_pp) == (2, None, None)


def test_means_of_the_records(arms):
    base = arms[0]
    assert base.truncated_frac == pytest.approx(0.01)
    assert base.faulty_steps_frac == pytest.approx(0.03)
    assert base.ece == pytest.approx(0.1)
    assert base.grad_norm == pytest.approx(1.0)
    assert base.grad_clipped_frac == pytest.approx(0.2)
    assert base.overshoot_frac == pytest.approx(0.25, abs=0.01)
    assert base.phase_s["total_s"] == pytest.approx(40 * 0.36)


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        ({}, 0),
        ({"grad_norm": 1.9}, 0),
        ({"grad_norm": 2.1}, 1),
        ({"grad_norm": 0.45}, 1),
        ({"grad_norm": 0.0}, 1),
        ({"grad_clipped_frac": 0.45}, 1),
        ({"grad_clipped_frac": 0.05}, 1),
        ({"grad_clipped_frac": 0.35}, 0),
        ({"grad_norm": 3.0, "grad_clipped_frac": 1.0}, 2),
        ({"grad_norm": None, "grad_clipped_frac": None}, 0),
    ],
)
def test_gradients_of_another_size_are_a_hidden_second_knob(arms, change, warned):
    base = arms[0]
    assert len(hidden_knob_warnings(replace(base, arm="up", **change), base)) == warned


def test_rarely_clipped_steps_are_no_second_knob(arms):
    base = replace(arms[0], grad_clipped_frac=0.0)
    assert hidden_knob_warnings(replace(base, grad_clipped_frac=0.05), base) == []
