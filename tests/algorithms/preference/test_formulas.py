from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import PreferenceObjective, formula, presets
from tests.algorithms.preference.cases import DPO, PREFERENCE_KNOBS, VALUES, corners, moved, points, preset
from tests.frozen import frozen


def test_every_preset_has_the_parts_that_all_have() -> None:
    for name in presets("preference"):
        parts = formula(preset(name))
        assert {"log-prob", "log-ratio", "pair loss", "loss"} <= set(parts)
        assert all(parts.values())


SAID: tuple[tuple[str, dict[str, object]], ...] = (
    ("simpo", {}),
    ("dpo", {"reference": "round_start", "ld_alpha": 0.5, "weighting": "wpo"}),
    ("ipo", {}),
    ("cdpo", {"matching": "sorted"}),
    ("robust_dpo", {}),
    ("dpop", {}),
    ("rpo", {"nll_coef": 0.2}),
    ("kto", {"desirable_weight": 1.5}),
    ("exo", {}),
    ("dpo", {"link": "discopop"}),
)


def test_what_formulas_say() -> None:
    """DPO's whole, and the parts in which others differ from it."""
    lines = [f"{part}: {said}" for part, said in formula(DPO).items()]
    for name, overrides in SAID:
        differing = formula(preset(name, **overrides)).items() - formula(DPO).items()
        lines += ["", *(f"{part}: {said}" for part, said in sorted(differing))]
    frozen("algorithms/preference_formulas", "\n".join(lines))


@pytest.mark.slow
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


@settings(max_examples=30, deadline=None)
@given(points(), st.sampled_from(PREFERENCE_KNOBS), st.data())
def test_different_objectives_have_different_formulas(
    start: PreferenceObjective, knob: str, data: st.DataObject
) -> None:
    value: Any = data.draw(st.sampled_from(VALUES[knob]))
    other = moved(start, knob, value)
    if other is not None:
        assert (formula(other) == formula(start)) == (other == start)
