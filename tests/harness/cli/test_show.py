from __future__ import annotations

from pathlib import Path

import pytest

from algorithms import active_knobs, describe, formula, preset, presets
from harness.config.knobs import active
from harness.plan.sweep_file import load_sweep
from tests.harness.cli.conftest import Bench
from tests.harness.config.cases import spec
from tests.harness.run.small import NEED_TEACHER


def test_an_algorithm_for_programs(bench: Bench) -> None:
    result = bench("show", "cispo", "--json", "--home", "anywhere")
    assert (result.code, result.err) == (0, "")
    entry = describe("cispo")
    assert result.document == {
        "algorithm": "cispo",
        "summary": entry.summary,
        "source": entry.source,
        "knobs": active_knobs(preset("cispo")),
        "formula": formula(preset("cispo")),
        "about": entry.about,
        "implementations": entry.implementations,
        "traps": entry.traps,
        "companions": {"train.updates_per_rollout": 16},
    }


@pytest.mark.parametrize("name", presets())
def test_an_algorithm_for_people(bench: Bench, name: str) -> None:
    out = bench("show", name).out
    entry, objective = describe(name), preset(name)
    assert out.startswith(f"{name}\n")
    for text in (entry.summary, entry.source, entry.about, entry.implementations, entry.traps):
        assert text in out
    lines = [line.split() for line in out.splitlines()]
    for knob, value in active_knobs(objective).items():
        assert [knob, "none" if value is None else str(value)] in lines
    for part, text in formula(objective).items():
        assert f"  {part}" in out and text in out, "never wrapped"
    assert ("not applied" in out) == bool(entry.companions)
    for knob, companion in entry.companions.items():
        assert [knob, str(companion)] in lines


@pytest.mark.parametrize("name", presets())
def test_what_a_paper_also_sets_is_a_valid_setting(name: str) -> None:
    companions = dict(describe(name).companions)
    taught = name in NEED_TEACHER or "teacher" in companions.values()
    teacher = {"teacher.type": "model", "teacher.source": "scratch:tiny"} if taught else {}
    sliced = {"rollout.partial.slice_tokens": 8} if "rollout.partial.type" in companions else {}
    knobs = active(spec({"algorithm": name, "rollout.prompts_per_step": 16, **teacher, **sliced, **companions}))
    assert {knob: knobs[knob] for knob in companions} == companions


def test_an_algorithm_with_overrides(bench: Bench) -> None:
    moves = {"aggregation": "constant_length", "rule.type": "cispo", "rule.weight_max": 5.0}
    words = [word for knob, value in moves.items() for word in ("--set", f"objective.{knob}={value}")]
    document = bench("show", "grpo", *words, "--json").document
    assert document["algorithm"] == "grpo with " + ", ".join(f"{knob}={value}" for knob, value in moves.items())
    assert document["knobs"] == active_knobs(preset("grpo", **moves))
    assert document["formula"] == formula(preset("grpo", **moves))
    assert document["source"] == describe("grpo").source
    out = bench("show", "grpo", *words).out
    assert out.startswith(document["algorithm"])
    assert f"\ngrpo: {describe('grpo').summary}" in out


def test_a_preference_algorithm_with_overrides(bench: Bench) -> None:
    document = bench("show", "dpo", "--set", "objective.beta=1", "--set", "objective.link=hinge", "--json").document
    assert document["algorithm"] == "dpo with beta=1, link=hinge"
    assert document["knobs"] == active_knobs(preset("hinge", beta=1.0))
    assert document["formula"] == formula(preset("hinge", beta=1.0))


def test_the_companions_of_a_recipe(bench: Bench) -> None:
    kimi = bench("show", "kimi_k1_5", "--json").document["companions"]
    assert kimi["train.optimizer_reset"] == "per_rollout"
    assert "reward.parts.kimi_length" in kimi
    assert "reward.parts.magistral_length" in bench("show", "magistral", "--json").document["companions"]


@pytest.mark.parametrize("name", ["tune_grpo", "std_norm"])
def test_a_shown_sweep_is_a_sweep_file(bench: Bench, tmp_path: Path, name: str) -> None:
    (tmp_path / "shown.yaml").write_text(bench("show", name).out)
    shown, _ = load_sweep("shown.yaml")
    assert shown == load_sweep(name)[0]
    assert bench("show", "shown.yaml").out == bench("show", name).out


@pytest.mark.parametrize(
    ("words", "code", "fields"),
    [
        (("gpro",), "bench.unknown_name", {"noun": "name", "nearest": "; did you mean gmpo, grpo or gspo?"}),
        (("zzz",), "bench.unknown_name", {"noun": "name", "nearest": "."}),
        (("grpo", "rule.clip_hihg=1"), "unknown", {"path": "objective.rule.clip_hihg"}),
        (("grpo", "rule.clip_high=-1"), "value", {}),
        (("dpo", "rule.clip_high=1"), None, {}),
        (("grpo", "beta=1"), None, {}),
        (("grpo", "scale"), "plan.setting_without_value", {}),
        (("tiny", "scale=none"), "cli.set_on_non_algorithm", {"name": "tiny"}),
        (("std_norm", "scale=none"), "cli.set_on_non_algorithm", {"name": "std_norm"}),
    ],
)
def test_mistakes(bench: Bench, words: tuple[str, ...], code: str | None, fields: dict[str, str]) -> None:
    name, *moved = words
    result = bench("show", name, *(word for setting in moved for word in ("--set", f"objective.{setting}")))
    assert (result.code, result.out, result.err.count("error: ")) == (2, "", 1)
    if code:
        result.refused(code, **fields)


@pytest.mark.parametrize("name", ["grpo", "dpo"])
def test_only_knobs_of_the_objective_can_be_set(bench: Bench, name: str) -> None:
    bench("show", name, "--set", "train.steps=3").refused("cli.not_an_objective_knob", setting="train.steps")


def test_all_mistakes_at_once(bench: Bench) -> None:
    words = ("--set", "objective.rule.clip_high=-1", "--set", "objective.scael=none")
    assert len(bench("show", "grpo", *words).err.splitlines()) == 2
