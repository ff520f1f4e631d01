from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from algorithms import RULES, Objective, active_knobs, preset, with_overrides
from harness.settings import defaults, knobs_of, unions_of
from tests.algorithms.points import POLICY_GRADIENT_KNOBS, corners, points

GRPO = preset("grpo", Objective)
POLICY_GRADIENT_KNOBS_ANYWHERE = {
    *("baseline", "scale", "advantage_sign", "credit", "aggregation", "sequence_penalty", "entropy.bonus", "zero_std"),
    *("rule.type", "select.type", "kl.where", "distill.where", "entropy.adaptive.type", "sampler_correction.type"),
    *("overlong.type", "overlong.penalty"),
}


def test_only_knobs_that_exist_are_active() -> None:
    plainest = set(active_knobs(Objective(aggregation="token_mean")))
    assert plainest == POLICY_GRADIENT_KNOBS_ANYWHERE
    clip = {f"rule.{knob}" for knob in ("clip_low", "clip_high", "dual_clip")}
    assert set(active_knobs(GRPO)) - plainest == {"pass_k", "scale_ddof", "scale_eps", "ratio"} | clip


def test_a_selector_that_is_absent_takes_its_knobs_with_it() -> None:
    kl = with_overrides(GRPO, {"kl.where": "loss", "kl.reference": "refreshed", "kl.control": "adaptive"})
    assert {"kl.refresh_every_steps", "kl.target_nats", "kl.horizon_sequences"} <= set(active_knobs(kl))
    assert not any(knob.startswith("kl.") and knob != "kl.where" for knob in active_knobs(GRPO))


@pytest.mark.slow
@given(points())
def test_selectors_come_first(objective: Objective) -> None:
    names = list(active_knobs(objective))
    assert set(names) <= set(POLICY_GRADIENT_KNOBS)
    for field, union in unions_of(Objective).items():
        assert next(name for name in names if name.startswith(f"{field}.")) == f"{field}.{union.selector}"


@pytest.mark.slow
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


def test_descriptions_name_the_members_that_have_a_knob() -> None:
    described = {name: knob.description for name, knob in knobs_of(Objective).items()}
    assert all(described.values())
    assert described["rule.clip_low"].startswith("ppo_clip: ")
    members = [part.partition(": ")[0] for part in described["sampler_correction.weight_max"].split(" | ")]
    assert members == ["token_truncate, sequence_truncate", "token_band, sequence_band"]
    assert all(f"{kind}: " in described["rule.type"] for kind in RULES.names())
