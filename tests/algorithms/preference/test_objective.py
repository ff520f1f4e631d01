from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from algorithms import (
    Objective,
    PreferenceObjective,
    active_knobs,
    objective_knobs,
    presets,
    with_overrides,
)
from harness.settings import defaults, knobs_of
from tests.algorithms.preference.cases import PREFERENCE_KNOBS, VALUES, corners, points, preset


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
    with pytest.raises(ValidationError, match="link"):
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


@given(points(), points())
def test_every_point_is_reached_from_every_other(start: PreferenceObjective, goal: PreferenceObjective) -> None:
    assert with_overrides(start, active_knobs(goal)) == goal


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"link": "sigmoid"}, "Input should be 'logistic', 'hinge'"),
        ({"beta": 0.0}, "greater than 0"),
        ({"beta": "0.1"}, "valid number"),
        ({"beta": float("inf")}, "finite"),
        ({"margin": -0.1}, "greater than or equal to 0"),
        ({"label_smoothing": 0.5}, "less than 0.5"),
        ({"ld_alpha": 1.5}, "less than or equal to 1"),
        ({"gamma": 1.0}, "Extra inputs"),
        (
            {"link": "square", "margin": 1.0},
            "margin=1.0 has no effect while link=square: leave it out, or set link to",
        ),
        ({"link": "hinge", "label_smoothing": 0.1}, "label_smoothing=0.1 has no effect while link=hinge"),
        (
            {"link": "exo", "label_smoothing": 0.1, "smoothing": "robust"},
            "smoothing=robust has no effect while link=exo",
        ),
        ({"link": "hinge", "positive_penalty": 1.0}, "positive_penalty=1.0 has no effect while link=hinge"),
        ({"desirable_weight": 2.0}, "desirable_weight=2.0 has no effect while link=logistic"),
        ({"undesirable_weight": 2.0}, "undesirable_weight=2.0 has no effect while link=logistic"),
        ({"discopop_tau": 0.1}, "discopop_tau=0.1 has no effect while link=logistic"),
        ({"logp": "mean", "ld_alpha": 0.5}, "ld_alpha=0.5 has no effect while logp=mean"),
        ({"link": "nca", "matching": "sorted"}, "matching=sorted has no effect while link=nca"),
        ({"link": "exo"}, "label_smoothing=0 with link=exo: .* set it above 0"),
        ({"link": "odds_ratio"}, "reference=initial with link=odds_ratio: .* set reference to none"),
        *(
            (
                {"link": link, "reference": "none"},
                f"reference=none with link={link}: .*; set reference to initial or round",
            )
            for link in ("kto", "bco", "apo_zero", "apo_down", "sppo_hard", "nca")
        ),
        ({"reference": "none", "positive_penalty": 5.0}, "reference=none with positive_penalty=5: .*; set reference"),
        ({"reference": "none", "matching": "sorted"}, "without a reference sorting changes nothing; set reference"),
        (
            {"matching": "sorted", "positive_penalty": 5.0},
            "positive_penalty=5 with matching=sorted: .* matching to pairs",
        ),
        (
            {"matching": "sorted_unpaired", "weighting": "wpo"},
            "weighting=wpo with matching=sorted_unpaired: .* to pairs",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
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
    with pytest.raises(ValidationError, match=r"margin=1.0 has no.*\nreference=none with link=kto"):
        PreferenceObjective.model_validate({"link": "kto", "reference": "none", "margin": 1.0})


def test_it_is_frozen() -> None:
    for name in presets("preference"):
        with pytest.raises(ValidationError, match="frozen"):
            preset(name).beta = 1.0  # type: ignore[misc]
