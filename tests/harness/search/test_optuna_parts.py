from __future__ import annotations

from contextlib import suppress
from typing import Any

import optuna
import pytest

from harness.config.search import Pruner, SearchSampler
from harness.errors import RefusedError
from harness.search.optuna_parts import make_pruner, make_sampler
from tests.refusals import refuses


@pytest.mark.parametrize(
    ("kind", "options", "code", "option"),
    [
        ("tpe", {"n_ei_candidates": 0}, "search.option_too_small", "n_ei_candidates"),
        ("tpe", {"n_startup_trials": -1}, "search.option_too_small", "n_startup_trials"),
        ("gp", {"n_startup_trials": -1}, "search.option_too_small", "n_startup_trials"),
        ("tpe", {"prior_weight": -1.0}, "search.option_deprecated", "prior_weight"),
        ("tpe", {"gamma": 3}, "search.unknown_option", "gamma"),
        ("nsga2", {"population_size": 1}, "search.options_refused", None),
        ("nsga2", {"mutation_prob": 1.5}, "search.options_refused", None),
        ("qmc", {"qmc_type": "latin"}, "search.options_refused", None),
        ("median", {"n_startup_trials": -1}, "search.option_too_small", "n_startup_trials"),
        ("asha", {"reduction_factor": 1}, "search.options_refused", None),
        ("asha", {"reduction_factor": 2.5}, "search.option_type", "reduction_factor"),
    ],
)
def test_options_that_would_end_a_search_in_its_midst_are_refused(
    kind: Any, options: Any, code: str, option: str | None
) -> None:
    with refuses(RefusedError, code, **({"option": option} if option else {"options": options})):
        if kind in ("median", "asha"):
            make_pruner(Pruner(type=kind, options=options))
        else:
            make_sampler(SearchSampler(type=kind, options=options), 0)


def test_the_lowest_values_of_options_can_be_used() -> None:
    make_sampler(SearchSampler(type="tpe", options={"n_startup_trials": 0, "n_ei_candidates": 1}), 0)


@pytest.mark.parametrize("kind", ["tpe", "gp", "random", "qmc", "nsga2"])
def test_no_option_is_offered_whose_use_optuna_warns_of(kind: Any, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(RefusedError) as refused:
        make_sampler(SearchSampler(type=kind, options={"x": 1}), 0)
    offered = str(refused.value).partition("Its options: ")[2].removesuffix(".").split(", ")
    values: list[Any] = [True, 2, 0.5, "halton"]
    for name in offered:
        for value in values:
            with suppress(RefusedError):
                make_sampler(SearchSampler(type=kind, options={name: value}), 0)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("kind", ["tpe", "random", "qmc", "nsga2", pytest.param("gp", marks=pytest.mark.slow)])
def test_a_conditional_knob_is_drawn_without_a_warning(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    optuna.logging.enable_propagation()
    study = optuna.create_study()
    for number in range(3):
        options: dict[str, object] = {"n_startup_trials": 1} if kind in ("tpe", "gp") else {}
        study.sampler = make_sampler(SearchSampler(type=kind, options=options), number)
        trial = study.ask()
        trial.suggest_float("always", 0, 1)
        if number:
            trial.suggest_float("conditional", 0, 1)
        study.tell(trial, number)
    optuna.logging.disable_propagation()
    assert [record.message for record in caplog.records if "independent" in record.message] == []
