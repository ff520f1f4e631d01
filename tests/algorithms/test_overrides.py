from __future__ import annotations

import pytest

from algorithms import KNOB_NAMES, active_knobs, preset, presets, with_overrides
from algorithms.overrides import nearest

GRPO = preset("grpo")


def complaint(**overrides: object) -> str:
    with pytest.raises(ValueError) as error:
        with_overrides(GRPO, overrides)
    return str(error.value)


def test_one_knob_moves_and_the_others_stay() -> None:
    moved = with_overrides(GRPO, {"rule.clip_high": 0.28})
    assert active_knobs(moved) == active_knobs(GRPO) | {"rule.clip_high": 0.28}
    assert with_overrides(GRPO, {}) == GRPO


def test_a_type_resets_its_group() -> None:
    wide = with_overrides(GRPO, {"rule.clip_low": 0.5, "rule.dual_clip": 3})
    assert with_overrides(wide, {"rule.type": "ppo_clip", "rule.dual_clip": 4}) == preset(
        "grpo", **{"rule.dual_clip": 4}
    )
    cispo = with_overrides(wide, {"rule.weight_max": 5.0, "rule.type": "cispo"})
    assert active_knobs(cispo)["rule.weight_max"] == 5
    assert "rule.clip_low" not in active_knobs(cispo)
    assert with_overrides(cispo, {"rule.type": "ppo_clip"}) == GRPO


def test_a_knob_that_ceases_to_exist_is_dropped_with_its_selector() -> None:
    fine = with_overrides(GRPO, {"scale_eps": 1e-4})
    assert with_overrides(fine, {"scale": "none"}) == with_overrides(GRPO, {"scale": "none"})
    assert with_overrides(fine, {"scale": "batch_std"}).scale_eps == 1e-4
    assert with_overrides(GRPO, {"rule.type": "policy_gradient"}).ratio == "none"
    assert with_overrides(GRPO, {"rule.type": "weighted"}).ratio == "token"


def test_every_preset_is_reached_from_every_other() -> None:
    for start in presets():
        for goal in presets():
            assert with_overrides(preset(start), active_knobs(preset(goal))) == preset(goal)


def test_all_complaints_at_once_with_the_nearest_names() -> None:
    text = complaint(**{"rule.clip_hihg": 1, "clip_low": 0.1, "rule.weight_max": 2, "rule.dual_clip": 0.5, "scael": 1})
    assert len(text.splitlines()) == 5
    assert "'rule.clip_hihg': did you mean rule.clip_high" in text
    assert "'clip_low': did you mean rule.clip_low" in text
    assert "'scael': did you mean scale" in text
    assert "rule.weight_max does not exist while rule.type=ppo_clip: leave it out, or set rule.type to cispo" in text
    assert "rule.dual_clip=0.5: input should be greater than 1" in text


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            {"rule": "cispo"},
            "rule is a group of knobs: set rule.type to one of policy_gradient, weighted, ppo_clip, cispo",
        ),
        ({"rule.type": "ppo"}, "rule.type='ppo': it should be one of policy_gradient, weighted, ppo_clip, cispo"),
        ({"rule.type": "cispo"}, "rule.weight_max has no default here: set it"),
        ({"rule.type": 3}, "rule.type='3': it should be one of"),
        ({"scale": "none", "scale_ddof": 0}, "scale_ddof=0 has no effect while scale=none"),
        ({"scale_ddof": True}, "scale_ddof=True: input should be a valid integer"),
        ({"baseline": "mean"}, "baseline='mean': input should be 'none', 'batch_mean'"),
    ],
)
def test_complaints(overrides: dict[str, object], expected: str) -> None:
    text = complaint(**overrides)
    assert expected in text
    assert len(text.splitlines()) == 1


def test_without_a_close_name_all_are_given() -> None:
    assert nearest("zzz", KNOB_NAMES) == f"valid: {', '.join(KNOB_NAMES)}"
