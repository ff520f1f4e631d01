from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import Objective, active_knobs, formula, preset, presets, with_overrides
from tests.algorithms.points import POLICY_GRADIENT_KNOBS, VALUES, corners, moved, points
from tests.frozen import frozen

GRPO = preset("grpo", Objective)
CISPO: dict[str, object] = {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.2}
CRITIC: dict[str, object] = {"baseline": "critic", "scale": "none"}
MOVES: tuple[dict[str, object], ...] = (
    {"pass_k": 4, "scale_ddof": 0, "aggregation": "constant_length"},
    {"pass_k": 2, "baseline": "leave_one_out", "scale_eps": 1e-4, "aggregation": "token_mean"},
    {"rule.type": "cispo", "rule.weight_max": 5, "scale": "batch_std", "aggregation": "group_token_mean"},
    {"rule.type": "cispo", "rule.weight_max": None, "scale": "mini_batch_std", "zero_std": "refill"},
    CISPO | {"rule.mask": "unified", "scale": "whiten_tokens"},
    {"credit": "steps", "select.type": "top_entropy"},
    {"baseline": "none", "scale": "none", "kl.where": "reward"},
    {"kl.where": "reward", "kl.beta": 0.05, "overlong.type": "soft"},
    {"kl.where": "loss", "overlong.penalty": -0.5},
    {"kl.where": "loss", "kl.estimator": "k3_ratio", "kl.control": "adaptive"},
    {"select.type": "kl_cov", "sampler_correction.type": "token_band"},
    CRITIC | {"critic.lam": 0.9, "entropy.bonus": 0.01, "sequence_penalty": 0.1},
)


@pytest.mark.parametrize("name", presets("policy_gradient"))
def test_every_preset_has_the_parts_that_all_have(name: str) -> None:
    parts = formula(preset(name, Objective))
    assert {"advantage", "ratio", "token loss", "loss", "aggregation", "rows"} <= set(parts)
    assert all(parts.values())
    assert "denominator" in parts["aggregation"]


def test_what_formulas_say() -> None:
    """GRPO's whole, and the parts in which others differ from it."""
    lines = [f"{part}: {said}" for part, said in formula(GRPO).items()]
    for overrides in MOVES:
        differing = formula(with_overrides(GRPO, overrides)).items() - formula(GRPO).items()
        lines += ["", *(f"{part}: {said}" for part, said in sorted(differing))]
    frozen("algorithms/formulas", "\n".join(lines))


@pytest.mark.slow
def test_every_knob_changes_the_formula() -> None:
    """Nothing that an objective does goes unsaid."""
    said = set()
    for start in corners():
        for knob in active_knobs(start):
            for value in VALUES[knob]:
                other = moved(start, knob, value)
                if other is not None and other != start:
                    assert formula(other) != formula(start), f"{knob}={value} from {active_knobs(start)}"
                    said.add(knob)
    assert said == set(POLICY_GRADIENT_KNOBS)


@settings(max_examples=30, deadline=None)
@given(points(), st.sampled_from(POLICY_GRADIENT_KNOBS), st.data())
def test_different_objectives_have_different_formulas(start: Objective, knob: str, data: st.DataObject) -> None:
    value: Any = data.draw(st.sampled_from(VALUES[knob]))
    other = moved(start, knob, value)
    if other is not None:
        assert (formula(other) == formula(start)) == (other == start)
