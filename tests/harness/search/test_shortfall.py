"""How far a search may have stopped short, and what that is worth: verdicts on tuned arms that are equal at their best.

The response of the simulated sweeps is the tiny model's, measured at eight learning rates with two seeds each:

| learning rate | 3e-5 | 6e-5 | 1.2e-4 | 3e-4 | 6e-4 | 1.5e-3 | 3e-3 |
| --- | --- | --- | --- | --- | --- | --- | --- |
| pass@1 (%) | 56 | 65 | 74 | 80 | 81 | 48 | 0 |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray

from harness.config.search import KnobRange, Search, Tune
from harness.records.sweep import TunedArm, Tuning
from harness.search.optuna_parts import make_sampler, without_experimental_warnings
from harness.search.shortfall import shortfall
from reports.measure.tuning import best_difference
from reports.statistics import compare_paired

FloatArray = NDArray[np.float64]
Response = Callable[[FloatArray], FloatArray]
KNOB = "train.learning_rate"
SEED_SD_PP = 0.8
"""The sd of the paired difference on the tiny profile, half of whose variance in an arm is the seed's own."""


MARGIN_PP = 2.0
"""Eight trials settle two points on a gentle response; one point they settle in a quarter of the sweeps."""


def gentle(x: FloatArray) -> FloatArray:
    """x: log10 of the learning rate that acts. Six points a decade squared."""
    return np.asarray(82 - 6 * (x + 4) ** 2)


def steep(x: FloatArray) -> FloatArray:
    """As measured, with its peak at 1e-4."""
    away = x + 4
    loss = np.where(away < 0, 45 * away**2 / (1 + 1.16 * np.abs(away)), np.minimum(125 * away**2, 82))
    return np.asarray(82 - loss)


def ranges(low: float = 1e-5, high: float = 1e-3) -> dict[str, KnobRange]:
    return {KNOB: KnobRange.model_validate({"log": [low, high]})}


def test_dense_trials_without_noise_leave_nothing_open() -> None:
    x = np.linspace(-5, -3, 21)
    found = shortfall(ranges(), [{KNOB: 10**one} for one in x], np.repeat(gentle(x)[:, None], 2, axis=1))
    assert found.mean < 0.02 and found.sd < 0.02


def test_fewer_and_noisier_trials_leave_more_open() -> None:
    random = np.random.default_rng(3)

    def found(n_trials: int, noise_pp: float) -> float:
        x = np.linspace(-5, -3, n_trials)
        return shortfall(
            ranges(), [{KNOB: 10**one} for one in x], gentle(x)[:, None] + random.normal(0, noise_pp, (n_trials, 3))
        ).sd

    assert found(4, 0.1) > 2 * found(16, 0.1)
    assert found(16, 2.0) > 2 * found(16, 0.1)


def test_what_all_seeds_do_alike_is_no_noise_and_a_collapse_is_no_landscape() -> None:
    x = np.linspace(-5, -3, 9)
    settings = [{KNOB: 10**one} for one in x]
    scores = gentle(x)[:, None] + np.random.default_rng(0).normal(0, 0.3, (9, 3))
    plain = shortfall(ranges(), settings, scores)
    assert shortfall(ranges(), settings, scores + np.array([0, 9, -9])) == pytest.approx(plain)
    collapsed = scores.copy()
    collapsed[-1] = 0
    assert shortfall(ranges(), settings, collapsed).sd == pytest.approx(plain.sd, rel=0.3)


def test_equal_scores_leave_nothing_open_and_a_choice_is_a_knob_too() -> None:
    knobs = ranges() | {"objective.aggregation": KnobRange.model_validate({"categorical": ["a", "b"]})}
    settings: list[dict[str, Any]] = [
        {KNOB: 1e-4, "objective.aggregation": "a"},
        {KNOB: 1e-3, "objective.aggregation": "b"},
        {KNOB: 1e-5},
    ]
    assert shortfall(knobs, settings, np.full((3, 2), 50.0)) == shortfall(knobs, settings[:2], np.zeros((2, 2)))
    assert shortfall(knobs, settings, np.array([[50.0, 50.5], [40.0, 41.0], [45.0, 44.0]])).sd > 0


def tuned_arm(response: Response, search: Search, shift: float, noise: FloatArray) -> tuple[float, TunedArm]:
    """Search one arm, whose learning rate acts shifted by so many decades. noise [n_trials, n_seeds], in points. The
    true score of what was found, and the record of it."""
    study = optuna.create_study(direction="maximize")
    settings: list[dict[str, float]] = []
    rows: list[FloatArray] = []
    with without_experimental_warnings():
        for number, of_trial in enumerate(noise):
            study.sampler = make_sampler(search.sampler, number)
            if number == 0:  # the arm untuned
                study.enqueue_trial({KNOB: 1e-4})
            trial = study.ask()
            settings.append({KNOB: trial.suggest_float(KNOB, *search.knobs[KNOB].bounds, log=True)})
            rows.append(response(np.array(math.log10(settings[-1][KNOB]) + shift)) + of_trial)
            study.tell(trial, float(rows[-1].mean()))
    scores = np.array(rows)
    left = shortfall(search.knobs, settings, scores)
    best = int(scores.mean(axis=1).argmax())
    record = TunedArm(
        digest="", trial=best, values=settings[best], search_pp=0, default_pp=None, complete=len(noise),
        generated_tokens=0, at_end=[], short_pp=left.mean, short_sd_pp=left.sd,
    )  # fmt: skip
    return float(response(np.array(math.log10(settings[best][KNOB]) + shift))), record


def simulated_verdicts(response: Response, n_trials: int, sweeps: int) -> tuple[Counter[str], Counter[str]]:
    """The verdicts of sweeps whose second arm has a hidden factor of .2 on the learning rate: untuned, and tuned."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    random = np.random.default_rng(18)
    tune = Tune(per_arm=ranges(), trials=n_trials)
    search, shifts, n_seeds = tune.search("eval.final.pass@1"), (0.0, math.log10(0.2)), 12
    sd = SEED_SD_PP / math.sqrt(2)
    naive: Counter[str] = Counter()
    tuned: Counter[str] = Counter()
    for _ in range(sweeps):
        shared = random.normal(0, sd, tune.seeds)
        bests = [
            tuned_arm(response, search, shift, shared + random.normal(0, sd, (n_trials, tune.seeds)))
            for shift in shifts
        ]
        fresh = random.normal(0, sd, n_seeds) + random.normal(0, sd, (2, n_seeds))
        untuned = [response(np.array(-4 + shift)) + noise for shift, noise in zip(shifts, fresh, strict=True)]
        naive[compare_paired(untuned[1], untuned[0], margin=MARGIN_PP).verdict] += 1
        baseline, treatment = (score + noise for (score, _), noise in zip(bests, fresh, strict=True))
        found = compare_paired(treatment, baseline, margin=MARGIN_PP)
        tuning = Tuning(knobs=[KNOB], trials=n_trials, seeds=[], searches={}, arms={})
        settles = best_difference(found, bests[1][1], bests[0][1], tuning, MARGIN_PP).settles
        tuned[found.verdict if settles else "inconclusive"] += 1
    return naive, tuned


@pytest.mark.long
@pytest.mark.parametrize(("response", "equivalent"), [(gentle, 0.6), (steep, 0.0)])
def test_arms_equal_at_their_best_are_told_apart_in_at_most_five_of_a_hundred_sweeps(
    response: Response, equivalent: float
) -> None:
    """On a steep response eight trials cannot settle one point, and say so; without what the searches leave open, a
    third of those sweeps would end in a false verdict."""
    sweeps = 200
    naive, tuned = simulated_verdicts(response, 8, sweeps)
    print(response.__name__, dict(naive), dict(tuned))
    assert naive["worse"] >= 0.95 * sweeps
    assert tuned["better"] + tuned["worse"] <= 0.05 * sweeps
    assert tuned["equivalent"] >= equivalent * sweeps


@pytest.mark.slow
def test_a_few_simulated_sweeps() -> None:
    naive, tuned = simulated_verdicts(gentle, 8, 3)
    assert naive["worse"] == 3
    assert tuned["better"] + tuned["worse"] == 0 and tuned["equivalent"] >= 1
