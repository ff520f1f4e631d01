from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from algorithms import (
    Objective,
    PreferenceObjective,
    active_knobs,
    objective_knobs,
    with_overrides,
)
from harness.settings import defaults, knobs_of
from tests.algorithms.preference.cases import PREFERENCE_KNOBS, VALUES, corners, points, preset
from tests.refusals import refuses

ROOM = "algorithms.preference"


def test_no_knob_is_in_both_families() -> None:
    policy_gradient, preference = knobs_of(Objective), knobs_of(PreferenceObjective)
    assert not {knob.partition(".")[0] for knob in policy_gradient} & set(preference)
    assert objective_knobs() == {**policy_gradient, **preference}


def test_every_knob_is_described_and_every_number_says_where_its_default_comes_from() -> None:
    fields, knobs = PreferenceObjective.model_fields, knobs_of(PreferenceObjective)
    assert tuple(fields) == PREFERENCE_KNOBS
    assert all(knobs[knob].description == info.description for knob, info in fields.items())
    numbers = {knob for knob, info in fields.items() if isinstance(info.default, float)}
    assert len(numbers) == 9
    assert [knob for knob in numbers if "default:" not in knobs[knob].description] == []


def test_the_link_has_no_default() -> None:
    assert PreferenceObjective.model_fields["link"].is_required()
    with refuses(ValidationError, "missing", path="link"):
        PreferenceObjective.model_validate({})


def test_every_value_can_be_reached() -> None:
    assert set(VALUES) == set(PREFERENCE_KNOBS)
    found: dict[str, set[Any]] = {knob: set() for knob in VALUES}
    for objective in corners():
        for knob, value in active_knobs(objective).items():
            found[knob].add(value)
    for knob, values in VALUES.items():
        assert set(values) <= found[knob], knob


def test_a_knob_that_is_absent_somewhere_has_its_selector_as_governor() -> None:
    everywhere = set.intersection(*(set(active_knobs(objective)) for objective in corners()))
    selectors = {name: knob.selector for name, knob in knobs_of(PreferenceObjective).items() if knob.selector}
    assert everywhere == set(PREFERENCE_KNOBS) - set(selectors)
    assert selectors["label_smoothing"] == selectors["desirable_weight"] == "link"
    assert selectors["ld_alpha"] == "logp"


@given(points())
def test_objectives_are_the_same_where_their_active_knobs_are(objective: PreferenceObjective) -> None:
    unset = defaults(objective)
    for knob in set(unset) - set(active_knobs(objective)):
        assert getattr(objective, knob) == unset[knob]
    assert PreferenceObjective.model_validate_json(objective.model_dump_json()) == objective


@settings(max_examples=50, deadline=None)
@given(points(), points())
def test_every_point_is_reached_from_every_other(start: PreferenceObjective, goal: PreferenceObjective) -> None:
    assert with_overrides(start, active_knobs(goal)) == goal


NO_EFFECT = "settings.no_effect"
SORTED: dict[str, object] = {"matching": "sorted"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"link": "sigmoid"}, "literal_error"),
        ({"beta": 0.0}, "greater_than"),
        ({"beta": "0.1"}, "float_type"),
        ({"beta": float("inf")}, "finite_number"),
        ({"margin": -0.1}, "greater_than_equal"),
        ({"label_smoothing": 0.5}, "less_than"),
        ({"ld_alpha": 1.5}, "less_than_equal"),
        ({"gamma": 1.0}, "extra_forbidden"),
        ({"link": "square", "margin": 1.0}, NO_EFFECT),
        ({"link": "hinge", "label_smoothing": 0.1}, NO_EFFECT),
        ({"link": "exo", "label_smoothing": 0.1, "smoothing": "robust"}, NO_EFFECT),
        ({"link": "hinge", "positive_penalty": 1.0}, NO_EFFECT),
        ({"desirable_weight": 2.0}, NO_EFFECT),
        ({"undesirable_weight": 2.0}, NO_EFFECT),
        ({"discopop_tau": 0.1}, NO_EFFECT),
        ({"logp": "mean", "ld_alpha": 0.5}, NO_EFFECT),
        ({"link": "nca", "matching": "sorted"}, NO_EFFECT),
        ({"link": "exo"}, f"{ROOM}.exo_without_smoothing"),
        ({"link": "odds_ratio"}, f"{ROOM}.odds_with_reference"),
        *(
            ({"link": link, "reference": "none"}, f"{ROOM}.sides_without_reference")
            for link in ("kto", "bco", "apo_zero", "apo_down", "sppo_hard", "nca")
        ),
        ({"reference": "none", "positive_penalty": 5.0}, f"{ROOM}.penalty_without_reference"),
        ({"reference": "none"} | SORTED, f"{ROOM}.sorted_without_reference"),
        ({"positive_penalty": 5.0} | SORTED, f"{ROOM}.penalty_of_sorted"),
        ({"matching": "sorted_unpaired", "weighting": "wpo"}, f"{ROOM}.weight_of_sorted"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], code: str) -> None:
    with refuses(ValidationError, code):
        PreferenceObjective.model_validate({"link": "logistic"} | change)


@pytest.mark.parametrize(
    "change",
    [
        {"reference": "none"},
        {"link": "square", "reference": "none"},
        {"reference": "none", "matching": "sorted_unpaired"},
        {"smoothing": "robust"},
        {"link": "hinge", "margin": 1.0},
        {"link": "kto", "logp": "mean", "weighting": "wpo", "nll_coef": 1},
    ],
)
def test_what_makes_sense_is_not(change: dict[str, Any]) -> None:
    PreferenceObjective.model_validate({"link": "logistic"} | change)


def test_every_problem_is_named_at_once() -> None:
    for code in (NO_EFFECT, f"{ROOM}.sides_without_reference"):
        with refuses(ValidationError, code):
            PreferenceObjective.model_validate({"link": "kto", "reference": "none", "margin": 1.0})


def test_it_is_frozen() -> None:
    with refuses(ValidationError, "frozen_instance"):
        preset("dpo").beta = 1.0  # type: ignore[misc]
