from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from algorithms import RULES, Objective, active_knobs, preset, with_overrides
from harness.settings import defaults, knobs_of, unions_of
from tests.algorithms.points import POLICY_GRADIENT_KNOBS, corners, points

GRPO = preset("grpo", Objective)


def test_only_knobs_that_exist_are_active() -> None:
    plainest = Objective(aggregation="token_mean")
    assert active_knobs(plainest) == {
        "baseline": "none",
        "scale": "none",
        "advantage_sign": "both",
        "credit": "completion",
        "rule.type": "policy_gradient",
        "select.type": "none",
        "aggregation": "token_mean",
        "kl.where": "none",
        "distill.where": "none",
        "sequence_penalty": 0.0,
        "entropy.bonus": 0.0,
        "entropy.adaptive.type": "none",
        "overlong.type": "penalise",
        "overlong.penalty": 0.0,
        "zero_std": "keep",
        "sampler_correction.type": "none",
    }
    assert set(active_knobs(GRPO)) - set(active_knobs(plainest)) == {
        "pass_k",
        "scale_ddof",
        "scale_eps",
        "ratio",
        "rule.clip_low",
        "rule.clip_high",
        "rule.dual_clip",
    }


def test_a_selector_that_is_absent_takes_its_knobs_with_it() -> None:
    kl = with_overrides(GRPO, {"kl.where": "loss", "kl.reference": "refreshed", "kl.control": "adaptive"})
    assert {"kl.refresh_every_steps", "kl.target_nats", "kl.horizon_sequences"} <= set(active_knobs(kl))
    assert not any(knob.startswith("kl.") and knob != "kl.where" for knob in active_knobs(GRPO))


@given(points())
def test_selectors_come_first(objective: Objective) -> None:
    names = list(active_knobs(objective))
    assert set(names) <= set(POLICY_GRADIENT_KNOBS)
    for field, union in unions_of(Objective).items():
        assert next(name for name in names if name.startswith(f"{field}.")) == f"{field}.{union.selector}"


@given(points())
def test_objectives_are_the_same_where_their_active_knobs_are(objective: Objective) -> None:
    """What is not active is at its default, so nothing is lost."""
    unset, active = defaults(objective), active_knobs(objective)
    everything = objective.model_dump()
    for knob in set(unset) - set(active):
        value: Any = everything
        for part in knob.split("."):
            value = value[part]
        assert value == unset[knob]


def test_a_knob_that_is_absent_somewhere_has_its_selector() -> None:
    everywhere = set.intersection(*(set(active_knobs(objective)) for objective in corners()))
    selectors = {name: knob.selector for name, knob in knobs_of(Objective).items() if knob.selector}
    assert everywhere == set(POLICY_GRADIENT_KNOBS) - set(selectors)
    assert set(selectors.values()) <= set(POLICY_GRADIENT_KNOBS)
    assert selectors["scale_ddof"] == "scale"
    assert selectors["ratio"] == selectors["rule.clip_low"] == "rule.type"
    assert selectors["kl.beta"] == selectors["kl.reference"] == "kl.where"
    assert selectors["kl.refresh_every_steps"] == "kl.reference"
    assert selectors["entropy.adaptive.delta"] == "entropy.adaptive.type"
    assert selectors["critic.lam"] == "baseline"


def test_a_knob_exists_at_what_it_says_of_its_selector() -> None:
    knobs = knobs_of(Objective)
    for objective in corners():
        active = active_knobs(objective)
        for name, knob in knobs.items():
            if knob.selector in active:
                assert (name in active) == (active[knob.selector] in knob.exists_at), name
            else:
                assert (name in active) == (knob.selector is None), name


def test_what_is_set_but_does_not_exist_is_found() -> None:
    silent = {**dict(GRPO), "scale": "none", "scale_ddof": 0}
    with pytest.raises(
        ValidationError, match="scale_ddof=0 has no effect while scale=none: leave it out, or set scale"
    ):
        Objective(**silent)


def test_descriptions_name_the_members_that_have_a_knob() -> None:
    described = {name: knob.description for name, knob in knobs_of(Objective).items()}
    assert all(described.values())
    assert described["rule.clip_low"].startswith("ppo_clip: ")
    both = described["sampler_correction.weight_max"]
    assert "token_truncate, sequence_truncate: upper bound" in both and " | token_band, sequence_band: above it" in both
    assert all(f"{kind}: " in described["rule.type"] for kind in RULES.names())
