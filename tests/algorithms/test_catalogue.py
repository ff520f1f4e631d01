from __future__ import annotations

import pytest

from algorithms import active_knobs, describe, preset, presets

CLIP = {"rule.type": "ppo_clip", "rule.clip_low": 0.2, "rule.clip_high": 0.2, "rule.dual_clip": None}
STD = {"scale_ddof": 1, "scale_eps": 1e-6}


def test_the_presets() -> None:
    """Written out in full: a preset that drifts changes the meaning of every sweep that names it."""
    assert {name: active_knobs(preset(name)) for name in presets()} == {
        "reinforce": {
            "baseline": "batch_mean",
            "scale": "none",
            "rule.type": "policy_gradient",
            "aggregation": "seq_mean_token_sum",
        },
        "rloo": {
            "baseline": "leave_one_out",
            "scale": "none",
            "ratio": "token",
            **CLIP,
            "aggregation": "seq_mean_token_sum",
        },
        "grpo": {
            "baseline": "group_mean",
            "scale": "group_std",
            **STD,
            "ratio": "token",
            **CLIP,
            "aggregation": "seq_mean_token_mean",
        },
        "dr_grpo": {
            "baseline": "group_mean",
            "scale": "none",
            "ratio": "token",
            **CLIP,
            "aggregation": "constant_length",
        },
        "dapo_loss": {
            "baseline": "group_mean",
            "scale": "group_std",
            **STD,
            "ratio": "token",
            **CLIP,
            "rule.clip_high": 0.28,
            "aggregation": "token_mean",
        },
        "lite_ppo": {
            "baseline": "group_mean",
            "scale": "batch_std",
            **STD,
            "ratio": "token",
            **CLIP,
            "aggregation": "token_mean",
        },
    }


def test_names_come_in_a_fixed_order() -> None:
    assert presets() == ("reinforce", "rloo", "grpo", "dr_grpo", "dapo_loss", "lite_ppo")


def test_overrides() -> None:
    assert active_knobs(preset("grpo", **{"rule.clip_high": 0.28, "aggregation": "token_mean"})) == active_knobs(
        preset("dapo_loss")
    )


def test_descriptions_name_their_source() -> None:
    for name in presets():
        assert any(source in describe(name) for source in ("1992", "24", "25")), name


def test_an_unknown_preset_is_named_with_its_neighbours() -> None:
    for function in (preset, describe):
        with pytest.raises(ValueError, match="unknown algorithm 'drgrpo': did you mean dr_grpo or grpo"):
            function("drgrpo")
