from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from algorithms import GOVERNORS, KNOB_NAMES, Objective, active_knobs, preset, presets
from algorithms.objective import UNIONS, Knobs

PLAIN: dict[str, Any] = {
    "baseline": "group_mean",
    "scale": "group_std",
    "ratio": "token",
    "rule": {"type": "ppo_clip"},
    "aggregation": "token_mean",
}


def test_only_knobs_that_exist_are_active() -> None:
    assert active_knobs(Objective.model_validate(PLAIN)) == {
        "baseline": "group_mean",
        "scale": "group_std",
        "scale_ddof": 1,
        "scale_eps": 1e-6,
        "ratio": "token",
        "rule.type": "ppo_clip",
        "rule.clip_low": 0.2,
        "rule.clip_high": 0.2,
        "rule.dual_clip": None,
        "aggregation": "token_mean",
    }
    plainest = Objective(aggregation="token_mean")
    assert active_knobs(plainest) == {
        "baseline": "none",
        "scale": "none",
        "rule.type": "policy_gradient",
        "aggregation": "token_mean",
    }


def test_a_knob_that_is_absent_somewhere_has_its_selector_as_governor() -> None:
    everywhere = set.intersection(*(set(active_knobs(preset(name))) for name in presets()))
    assert everywhere == set(KNOB_NAMES) - set(GOVERNORS)
    assert set(GOVERNORS.values()) <= everywhere
    assert GOVERNORS["scale_ddof"] == "scale"
    assert GOVERNORS["ratio"] == GOVERNORS["rule.clip_low"] == "rule.type"


def test_every_knob_is_described() -> None:
    groups: list[type[Knobs]] = [Objective, *(member for members in UNIONS.values() for member in members.values())]
    for group in groups:
        assert group.__doc__
        for name, field in group.model_fields.items():
            assert field.description or name in {"type", *UNIONS}, name


def test_json_round_trip() -> None:
    for name in presets():
        assert Objective.model_validate_json(preset(name).model_dump_json()) == preset(name)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rule": {"type": "cispo", "weight_min": 2.0, "weight_max": 1.0}}, "weight_max=1 is not above weight_min=2"),
        ({"rule": {"type": "cispo"}}, "weight_max"),
        ({"rule": {"type": "ppo_clip", "clip_low": 0.0}}, "greater than 0"),
        ({"rule": {"type": "ppo_clip", "dual_clip": 1.0}}, "greater than 1"),
        ({"rule": {"type": "ppo_clip", "clip_high": float("nan")}}, "greater than 0|finite"),
        ({"rule": {"type": "ppo_clip", "clip_high": "0.2"}}, "valid number"),
        ({"rule": {"type": "weighted", "clip_low": 0.2}}, "Extra inputs"),
        ({"ratio": "none"}, "acts through the importance ratio; set ratio to token"),
        ({"rule": {"type": "policy_gradient"}}, "ratio=token has no effect while rule.type=policy_gradient"),
        ({"scale": "none", "scale_ddof": 0}, "scale_ddof=0 has no effect while scale=none"),
        ({"scale": "none", "scale_eps": 1e-4}, "scale_eps=0.0001 has no effect while scale=none"),
        ({"baseline": "batch_mean"}, "use a group baseline"),
        ({"baseline": "none", "scale": "batch_std"}, "choose a baseline"),
        ({"scale_ddof": 2}, "less than or equal to 1"),
        ({"kl": 0.1}, "Extra inputs"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Objective.model_validate(PLAIN | change)


def test_aggregation_has_no_default() -> None:
    with pytest.raises(ValidationError, match="aggregation"):
        Objective.model_validate({})
