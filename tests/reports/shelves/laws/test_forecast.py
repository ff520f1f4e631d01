from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reports.shelves.laws import EntropyRun, LawRefusedError, first_part, fit_entropy_law, forecast
from tests.refusals import refuses
from tests.reports.shelves.laws.curves import entropy_curve, law_run


def test_where_the_law_holds_its_forecast_beats_all_rivals():
    runs = [law_run(200, np.random.default_rng(seed), correlation=0.0, sd=0.01) for seed in range(3)]
    found = forecast(runs)
    assert found.beats
    assert found.rmse_law < 0.5 * min(found.rmse_last, found.rmse_step, found.rmse_line)
    assert found.rmse_law == pytest.approx(0.01, rel=0.5)
    assert found.n_predicted == 3 * 140


def test_errors_by_hand():
    step = np.arange(1.0, 31)
    entropy = np.linspace(1.0, 0.1, 30)
    reward = np.where(step <= 9, step, 20.0)
    found = forecast([EntropyRun(step, entropy, reward)])
    law = fit_entropy_law(entropy[:9], reward[:9])
    assert found.law == law
    assert found.rmse_law == pytest.approx(np.sqrt(np.mean((law.predict(entropy[9:]) - 20) ** 2)))
    assert found.rmse_last == pytest.approx(20 - 8)  # the mean of 7, 8, 9
    slope, intercept = np.polyfit(np.log1p(step[:9]), reward[:9], 1)
    assert found.rmse_step == pytest.approx(np.sqrt(np.mean((intercept + slope * np.log1p(step[9:]) - 20) ** 2)))
    slope, intercept = np.polyfit(entropy[:9], reward[:9], 1)
    assert found.rmse_line == pytest.approx(np.sqrt(np.mean((intercept + slope * entropy[9:] - 20) ** 2)))
    assert found.uncertainty.half_width_a() > 0


@pytest.mark.parametrize(
    ("last", "step", "line", "beats"),
    [(3, 3, 3, True), (1, 3, 3, False), (3, 1, 3, False), (3, 3, 1, False), (3, 3, 2, False)],
)
def test_it_must_beat_every_rival(last, step, line, beats):
    found = forecast([law_run(60, np.random.default_rng(0))])
    found = replace(found, rmse_law=2.0, rmse_last=last, rmse_step=step, rmse_line=line)
    assert found.beats is beats
    may_be_flat = replace(found.law, a=0.9 * found.uncertainty.half_width_a())
    assert not replace(found, law=may_be_flat).beats


def test_a_reward_that_is_linear_in_the_entropy_is_forecast_best_by_the_line():
    """The law knows the entropies, and so beats all that do not: that is no sign of exp(H)."""
    rng = np.random.default_rng(0)
    runs = [law_run(200, rng) for _ in range(3)]
    runs = [EntropyRun(run.step, run.entropy, 1.0 - 0.5 * run.entropy + rng.normal(0, 0.01, 200)) for run in runs]
    found = forecast(runs)
    assert found.rmse_line < found.rmse_law < min(found.rmse_last, found.rmse_step)
    assert not found.beats


@pytest.mark.slow
def test_the_reward_of_no_law_is_forecast_by_luck_alone():
    """Around a reward that nothing moves, a flat line misses by no more than anything else does."""
    rng = np.random.default_rng(0)
    step = np.arange(1.0, 41)
    wins = [
        forecast([EntropyRun(step, entropy_curve(40, rng), 0.3 + rng.normal(0, 0.05, 40)) for _ in range(6)]).beats
        for _ in range(200)
    ]
    assert np.mean(wins) < 0.05


def test_each_run_has_rivals_of_its_own_where_runs_differ():
    step = np.arange(1.0, 41)
    entropy = np.linspace(1.0, 0.1, 40)
    low, high = EntropyRun(step, entropy, np.full(40, 1.0)), EntropyRun(step, entropy, np.full(40, 5.0))
    found = forecast([low, high])
    assert (found.rmse_last, found.rmse_step) == pytest.approx((0, 0), abs=1e-9)
    assert found.rmse_law == pytest.approx(2)


def test_rivals_are_of_all_runs_where_those_do_not_differ():
    """As the law is: of six runs the mean of the last values is less noisy than each alone."""
    rng = np.random.default_rng(0)
    step = np.arange(1.0, 41)
    runs = [EntropyRun(step, entropy_curve(40, rng), 0.3 + rng.normal(0, 0.05, 40)) for _ in range(6)]
    found = forecast(runs)
    rest = np.concatenate([run.reward[12:] for run in runs])
    last = np.mean([run.reward[9:12] for run in runs])
    line = np.polyfit(np.log1p(np.tile(step[:12], 6)), np.concatenate([run.reward[:12] for run in runs]), 1)
    assert found.rmse_last == pytest.approx(np.sqrt(np.mean((last - rest) ** 2)))
    assert found.rmse_step == pytest.approx(
        np.sqrt(np.mean((np.polyval(line, np.log1p(np.tile(step[12:], 6))) - rest) ** 2))
    )


def test_the_first_part_is_that_of_the_steps_not_of_the_points():
    run = EntropyRun(np.array([1.0, 50, 60, 100]), np.zeros(4), np.zeros(4))
    assert first_part(run, 0.5).tolist() == [True, True, False, False]


def test_too_short_a_first_part_is_refused():
    with refuses(LawRefusedError, "reports.shelves.laws.few_first_points", n_first=6, first_frac=0.3):
        forecast([law_run(20, np.random.default_rng(0))])
    with refuses(ValueError, "reports.shelves.laws.first_frac_out_of_range", first_frac=1.0):
        forecast([law_run(20, np.random.default_rng(0))], first_frac=1.0)


def test_runs_without_a_line_of_their_own_are_not_predicted():
    """Many seeds with few evaluations each: one in the first part of each, or none beyond it."""
    rng = np.random.default_rng(0)
    single = [law_run(4, rng) for _ in range(9)]
    with refuses(LawRefusedError, "reports.shelves.laws.no_run_with_both_parts", least_first=2):
        forecast(single)
    found = forecast([*single, long := law_run(60, rng)])
    assert found.n_predicted == int((~first_part(long)).sum())
