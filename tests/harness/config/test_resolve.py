from __future__ import annotations

import re
from typing import Any

import pytest

from algorithms import PreferenceObjective, preset
from harness.config.knobs import active, governor, spec_knobs
from harness.config.resolve import Layer, resolve
from harness.errors import RefusedError
from harness.settings.faults import FaultyError
from tests.frozen import frozen
from tests.harness.config.cases import MINIMAL, spec


def refusal(*layers: dict[str, Any]) -> list[str]:
    """The lines of the refusal; the layers' origins are a, b, c, ..."""
    with pytest.raises(RefusedError) as caught:
        resolve([Layer(origin, layer) for origin, layer in zip("abcd", layers, strict=False)], seed=0)
    return str(caught.value).splitlines()


def test_later_layers_win() -> None:
    assert spec({"train.steps": 6}).train.steps == 6
    assert spec({"train.steps": 6}, {"train.steps": 7}).train.steps == 7
    assert spec({"train.steps": 6}, {"train.steps": 7}, {"eval.samples": 4}).train.steps == 7


def test_nested_and_dotted_keys_are_one() -> None:
    dotted = spec({"rollout.temperature": 0.7, "rollout.samples_per_prompt": 4, "objective.rule.clip_high": 0.3})
    nested = spec({"rollout": {"temperature": 0.7, "samples_per_prompt": 4}, "objective": {"rule": {"clip_high": 0.3}}})
    mixed = spec(
        {"rollout": {"temperature": 0.7}, "rollout.samples_per_prompt": 4, "objective.rule": {"clip_high": 0.3}}
    )
    assert dotted == nested == mixed
    assert dotted.rollout.temperature == 0.7


def test_a_nested_layer_keeps_the_siblings_of_the_layers_below() -> None:
    resolved = spec({"rollout": {"temperature": 0.7}}, {"rollout": {"samples_per_prompt": 4}})
    assert (resolved.rollout.temperature, resolved.rollout.samples_per_prompt) == (0.7, 4)


def test_algorithm_resets_the_objective_and_overrides_come_on_top() -> None:
    changed = {"objective.rule.clip_high": 0.4, "objective.scale": "none"}
    assert spec(changed).objective == preset("grpo", **{"rule.clip_high": 0.4, "scale": "none"})
    assert spec(changed, {"algorithm": "dapo"}).objective == preset("dapo")
    same_layer = spec(changed, {"objective.scale": "none", "algorithm": "dapo"})
    assert same_layer.objective == preset("dapo", scale="none")


def test_a_type_resets_its_siblings() -> None:
    clipped = {"objective.rule.clip_high": 0.4}
    assert spec(clipped, {"objective.rule.type": "ppo_clip"}).objective == preset("grpo")
    sft = {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic", "steps": 7}}
    other = {"model.cold_start.type": "sft", "model.cold_start.data": "demonstrations:arithmetic"}
    assert active(spec(sft))["model.cold_start.steps"] == 7
    assert active(spec(sft, other))["model.cold_start.steps"] == 1000
    assert not [knob for knob in active(spec(sft, {"model.cold_start.type": "none"})) if "cold_start.steps" in knob]


def test_a_layer_may_name_the_type_after_its_siblings() -> None:
    late = {"model.cold_start.data": "demonstrations:arithmetic", "model.cold_start.steps": 7}
    late["model.cold_start.type"] = "sft"
    assert active(spec(late))["model.cold_start.steps"] == 7


def test_other_reward_parts_come_on_top_of_correctness() -> None:
    assert spec().reward.parts == {"correct": 1.0}
    assert spec({"reward.parts.reaches_answer": 0.2}).reward.parts == {"correct": 1.0, "reaches_answer": 0.2}
    assert spec({"reward.parts": {"reaches_answer": 0.2, "correct": 0.5}}).reward.parts == {
        "reaches_answer": 0.2,
        "correct": 0.5,
    }
    assert spec({"reward.parts.correct": 0.5}, {"reward.parts.format": 1.0}).reward.parts["correct"] == 0.5


def test_every_default_is_written_out() -> None:
    resolved = spec()
    assert resolved.task.template == resolved.eval.template == "plain"
    assert resolved.reward.grader == resolved.eval.grader == "numeric"
    assert resolved.eval.tasks == ("arithmetic",)
    assert resolved.eval.k == (1, 2, 4, 8, 16)
    assert spec({"eval.samples": 6}).eval.k == (1, 2, 4)
    knobs = active(resolved)
    of_pairs = {f"objective.{knob}" for knob in PreferenceObjective.model_fields}
    missing = [knob for knob in spec_knobs() if knob not in {*knobs, *of_pairs, "reward.parts", "checkpoint"}]
    assert all(governor(knob) for knob in missing)


def test_evaluation_defaults_follow_the_first_evaluated_task() -> None:
    resolved = spec({"eval.tasks": ["gsm8k", "arithmetic"]})
    assert (resolved.eval.template, resolved.eval.grader) == ("boxed", "numeric")
    assert resolved.task.template == "plain"


def test_an_unknown_key_names_origin_path_and_nearest_keys() -> None:
    keys = ("train.stpes", "trian.steps", "temperature", "clip_high", "objective.clip_high", "eval.template_")
    lines = [refusal(MINIMAL, {key: 1}) for key in (*keys, "algorihm", "zzzzzz")]
    frozen("config/unknown_keys", "\n".join(line for (line,) in lines))


def test_all_errors_of_all_layers_are_told_at_once() -> None:
    lines = refusal(
        MINIMAL | {"train.steps": "many", "eval.samples": 0},
        {"rollout": {"temprature": 1.0}, "objective.scale": "group", "task.train": "arithmetik"},
        {"train.learning_rate": -1.0, "objective.rule.clip_hgh": 3, "objective.rule.clip_low": "wide"},
    )
    frozen("config/all_mistakes", "\n".join(sorted(lines)))


MISTAKES: list[dict[str, Any]] = [
    {"train.steps": 1.5},
    {"train.steps": "5"},
    {"train.steps": True},
    {"train.steps": None},
    {"train.learning_rate": float("inf")},
    {"train.learning_rate": float("nan")},
    {"train.weight_decay": float("inf")},
    {"train": 3},
    {"train": {}},
    {"objective": "grpo"},
    {"objective.rule": "cispo"},
    {"reward.parts": {}},
    {"reward.parts": 1.0},
    {"reward.parts.corect": 1.0},
    {"reward.parts.format": "a"},
    {"reward.parts.format.x": 1.0},
    {"train.steps.x": 1},
    {"seed": 3},
    {"algorithm": "grop"},
    {"algorithm": None},
    {"eval.tasks": "arithmetic"},
    {"eval.tasks": []},
    {"eval.tasks": ["arithmetik"]},
    {"eval.template": "plian"},
    {"task.template": "plian"},
    {"reward.grader": "numerik"},
    {"eval.grader": "numerik"},
    {"task.train": 3},
    {"eval.k": [64]},
    {"eval.samples": "x"},
    {"rollout.top_p": 0.9},
    {"train.updates_per_rollout": 5},
    {"train.device": "gpu"},
    {"model.cold_start.type": "sftt"},
    {"model.cold_start.steps": 3},
    {"model.cold_start.type": "sft"},
    {"model.cold_start": {"type": "sft", "data": "solutions:arithmetik"}},
    {"model.cold_start": "sft"},
    {"task.order": "hardest"},
    {"task.pool": 0},
    {"task.filter": "pass_rate"},
    {"task.filter.type": "passrate"},
    {"task.filter.samples": 3},
    {"task.filter": {"type": "pass_rate", "samples": 0}},
    {"task.filter": {"type": "pass_rate", "lowest": 0.6, "highest": 0.4}},
    {"task.filter": {"type": "pass_rate", "samples": 2, "lowest": 0.3, "highest": 0.4}},
    {"task.filter": {"type": "none", "samples": 3}},
    {"rollout.staged.type": "converge"},
    {"rollout.staged": {"type": "converged"}},
    {"rollout.staged": {"type": "at_step", "first_tokens": 20, "step": 1}},
    {"rollout.staged": {"type": "converged", "first_tokens": 40}},
    {"objective.rule.weight_max": 3.0},
]


def test_one_mistake_gives_one_line_that_names_its_layer() -> None:
    told = ""
    for settings in MISTAKES:
        (line,) = refusal(MINIMAL, settings, {"train.max_grad_norm": 1.0})
        assert line.startswith("b: ")
        told += f"{settings}\n    {line}\n"
    frozen("config/mistakes", re.sub(r"and \d+ more", "and more", told))


def test_a_missing_key_is_laid_to_the_first_layer() -> None:
    for key in ("train.steps", "model.source", "task.train"):
        settings = {knob: value for knob, value in MINIMAL.items() if knob != key}
        with pytest.raises(FaultyError) as caught:
            resolve([Layer("a", settings), Layer("b", {"eval.samples": 8})], seed=0)
        (fault,) = caught.value.faults
        assert (fault.code, fault.origin) == ("missing", "a") and key.startswith(fault.path)


def test_an_algorithm_must_be_named() -> None:
    settings = {knob: value for knob, value in MINIMAL.items() if knob != "algorithm"}
    for layers in ([settings], [settings, {"objective.scale": "none"}]):
        (line,) = refusal(*layers)
        assert line.startswith(f"{'ab'[len(layers) - 1]}: ") and "`algorithm`" in line
