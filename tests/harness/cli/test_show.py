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
    assert document["algorithm"] == "grpo with aggregation=constant_length, rule.type=cispo, rule.weight_max=5.0"
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
    ("words", "says"),
    [
        (("gpro",), "unknown name 'gpro'; did you mean gmpo, grpo or gspo? `bench ls WHAT` lists all."),
        (("grpo", "--set", "objective.rule.clip_hihg=1"), "--set: unknown objective knob 'rule.clip_hihg'"),
        (("grpo", "--set", "objective.rule.clip_high=-1"), "rule.clip_high is -1: input should be greater than 0"),
        (("grpo", "--set", "train.steps=3"), "--set train.steps: only knobs of the objective can be set here, e.g."),
        (("dpo", "--set", "train.steps=3"), "can be set here, e.g. --set objective.link=logistic."),
        (("dpo", "--set", "objective.rule.clip_high=1"), "rule.clip_high belongs to policy-gradient objectives"),
        (("grpo", "--set", "objective.beta=1"), "beta belongs to preference objectives"),
        (("grpo", "--set", "objective.scale"), "must be key=value"),
        (("tiny", "--set", "objective.scale=none"), "only an algorithm's knobs can be set here, and tiny is not one"),
        (("std_norm", "--set", "objective.scale=none"), "and std_norm is not one"),
    ],
)
def test_mistakes(bench: Bench, words: tuple[str, ...], says: str) -> None:
    result = bench("show", *words)
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert result.err.count("error: ") == 1


def test_all_mistakes_at_once(bench: Bench) -> None:
    words = ("--set", "objective.rule.clip_high=-1", "--set", "objective.scael=none")
    assert len(bench("show", "grpo", *words).err.splitlines()) == 2


def test_help_has_an_example(bench: Bench) -> None:
    assert "Example: bench show grpo" in bench("show", "--help").out
