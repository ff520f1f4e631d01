from __future__ import annotations

import re

import pytest

from algorithms import AnyObjective, Objective, PreferenceObjective, Preset, describe, preset, presets
from harness.settings import knobs_of, unions_of
from tests.refusals import refuses

OBJECTIVES: dict[str, type[AnyObjective]] = {"policy_gradient": Objective, "preference": PreferenceObjective}


def test_families() -> None:
    assert sorted(presets()) == sorted(presets("policy_gradient") + presets("preference"))
    assert {"grpo", "ppo", "cispo", "rft"} <= set(presets("policy_gradient"))
    assert {"dpo", "simpo", "kto"} <= set(presets("preference"))
    for name in presets():
        assert isinstance(preset(name), OBJECTIVES[describe(name).family])


def test_a_preset_can_be_asked_for_by_its_family() -> None:
    assert preset("grpo", Objective, scale="none") == preset("grpo", scale="none")
    with refuses(ValueError, "algorithms.preset_of_other_family", name="dpo", family="PreferenceObjective"):
        preset("dpo", Objective)


def test_no_two_presets_are_the_same() -> None:
    assert len({preset(name) for name in presets()}) == len(presets())


def test_overrides() -> None:
    dapo = {"rule.clip_high": 0.28, "aggregation": "token_mean", "overlong.type": "soft", "zero_std": "refill"}
    assert preset("grpo", Objective, **dapo) == preset("dapo", Objective)


def texts(entry: Preset) -> dict[str, str]:
    return {name: getattr(entry, name) for name in ("summary", "source", "about", "implementations", "traps")}


def test_every_preset_is_described() -> None:
    for name in presets():
        entry = describe(name)
        assert all(texts(entry).values()), name
        assert re.search(r"\b(1[5-9]\d{2}\.\d{5}|2\d{3}\.\d{5}|1992|TRL)\b", entry.source), f"{name} names no paper"
        assert len(entry.summary) <= 100 and not entry.summary.endswith(".") and "\n" not in entry.summary, name
        for field in ("about", "implementations", "traps"):
            assert texts(entry)[field].endswith("."), (name, field)


@pytest.mark.parametrize("name", presets())
def test_settings_that_a_text_names_can_be_made(name: str) -> None:
    """`rule.dual_clip=3` and the like, all that one text names together."""
    family = OBJECTIVES[describe(name).family]
    knobs, unions = knobs_of(family), unions_of(family)
    for text in texts(describe(name)).values():
        named = dict(re.findall(r"\b(?:objective\.)?([a-z_.]+)=([\w.]*\w)", text))
        last_segments = {knob.rpartition(".")[2] for knob in knobs}
        assert {*unions, *last_segments} & set(named) <= set(knobs), "no full name"
        settings = {knob: _value(value) for knob, value in named.items() if knob in knobs}
        if any(knob.startswith("kl.") for knob in settings):
            settings.setdefault("kl.where", "loss")
        if settings:
            assert preset(name, **settings) != preset(name), settings


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def test_traps_and_kl_are_told() -> None:
    """Whoever takes one step per rollout must know which of these cannot act."""
    for name in ("grpo", "dapo", "cispo", "kl_cov", "kimi_k1_5", "sapo", "ppo"):
        assert "step" in describe(name).traps, name
    settings = dict(re.findall(r"objective\.(kl\.\w+)=([\w.]*\w)", describe("grpo").about))
    assert settings == {"kl.where": "loss", "kl.estimator": "k3", "kl.beta": "0.04"}


def test_an_unknown_preset_is_named_with_its_neighbours() -> None:
    for function in (preset, describe):
        with refuses(ValueError, "bench.unknown_name", name="'drgrpo'") as error:
            function("drgrpo")
        assert "dr_grpo" in str(error.value.fields["nearest"])
