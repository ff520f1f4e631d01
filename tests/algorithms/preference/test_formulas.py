from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import PreferenceObjective, formula, presets, with_overrides
from tests.algorithms.preference.cases import DPO, PREFERENCE_KNOBS, VALUES, corners, moved, points, preset


def test_every_preset_has_the_parts_that_all_have() -> None:
    for name in presets("preference"):
        parts = formula(preset(name))
        assert {"log-prob", "log-ratio", "pair loss", "loss"} <= set(parts)
        assert all(parts.values())


def test_dpo() -> None:
    assert formula(DPO) == {
        "log-prob": "l(y) = sum over the completion's tokens of log pi(y_t)",
        "log-ratio": "c = l(chosen) - l_ref(chosen), r = l(rejected) - l_ref(rejected), pi_ref the starting weights",
        "logit": "h = 0.1 d, d = c - r",
        "pair loss": "-log sigmoid(h)",
        "loss": "mean over the step's pairs of pair loss, minimised",
    }


@pytest.mark.parametrize(
    ("name", "overrides", "part", "says"),
    [
        ("simpo", {}, "logit", "h = 2 d - 1, d = c - r"),
        ("simpo", {}, "log-ratio", "without a reference"),
        ("dpo", {"reference": "round_start"}, "log-ratio", "pi_ref the policy at the start of the round"),
        ("ipo", {}, "pair loss", "(c - r - 5)^2, 5 = 1 / (2 x 0.1)"),
        ("cdpo", {}, "pair loss", "-0.9 log sigmoid(h) - 0.1 log sigmoid(-h)"),
        ("robust_dpo", {}, "pair loss", "[-0.9 log sigmoid(h) + 0.1 log sigmoid(-h)] / 0.8"),
        ("dpop", {}, "logit", "d = c - r - 50 max(0, -c)"),
        ("rpo", {}, "loss", "pair loss + NLL, minimised"),
        ("rpo", {"nll_coef": 0.2}, "NLL", "0.2 x mean of -log pi over the chosen tokens of the optimiser step"),
        ("kto", {"desirable_weight": 1.5}, "pair loss", "1/2 [1.5 sigmoid(0.1 (z - c)) + 1 sigmoid(0.1 (r - z))]"),
        ("kto", {}, "zero point", "at least 0, without gradient"),
        ("exo", {}, "pair loss", "q log(q / 0.999) + (1 - q) log((1 - q) / 0.001)"),
        ("dpo", {"ld_alpha": 0.5}, "log-prob", "times 0.5 beyond the length of the pair's shorter one"),
        ("dpo", {"weighting": "wpo"}, "loss", "of w x pair loss"),
        ("dpo", {"matching": "sorted"}, "loss", "a step cannot be split into micro-batches"),
        ("dpo", {"link": "discopop"}, "pair loss", "w = sigmoid(h / 0.05)"),
    ],
)
def test_what_a_formula_says(name: str, overrides: dict[str, object], part: str, says: str) -> None:
    assert says in formula(with_overrides(preset(name), overrides))[part]


def test_every_knob_changes_the_formula() -> None:
    """Nothing that an objective does goes unsaid."""
    said = set()
    for start in corners():
        for knob in PREFERENCE_KNOBS:
            for value in VALUES[knob]:
                other = moved(start, knob, value)
                if other is not None and other != start:
                    assert formula(other) != formula(start), f"{knob}={value} from {start}"
                    said.add(knob)
    assert said == set(PREFERENCE_KNOBS)


@settings(max_examples=50, deadline=None)
@given(points(), st.sampled_from(PREFERENCE_KNOBS), st.data())
def test_different_objectives_have_different_formulas(
    start: PreferenceObjective, knob: str, data: st.DataObject
) -> None:
    value: Any = data.draw(st.sampled_from(VALUES[knob]))
    other = moved(start, knob, value)
    if other is not None:
        assert (formula(other) == formula(start)) == (other == start)
