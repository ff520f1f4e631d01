from __future__ import annotations

from typing import Any

import pytest

from algorithms import PreferenceObjective, preset
from harness.config.knobs import active, governor, spec_knobs
from harness.config.resolve import Layer, resolve
from harness.errors import RefusedError
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


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("train.stpes", "train.steps"),
        ("trian.steps", "train.steps"),
        ("temperature", "rollout.temperature"),
        ("clip_high", "objective.rule.clip_high"),
        ("objective.clip_high", "objective.rule.clip_high"),
        ("eval.template_", "eval.template"),
        ("algorihm", "algorithm"),
    ],
)
def test_an_unknown_key_names_origin_path_and_nearest_key(key: str, hint: str) -> None:
    (line,) = refusal(MINIMAL, {key: 1})
    assert line.startswith(f"b: unknown key {key}; did you mean")
    assert hint in line


def test_a_key_like_no_other_has_no_hint() -> None:
    assert refusal(MINIMAL, {"zzzzzz": 1}) == ["b: unknown key zzzzzz. `bench ls knobs` lists all."]


def test_the_likest_key_comes_first() -> None:
    assert refusal(MINIMAL, {"trian.steps": 1})[0].startswith("b: unknown key trian.steps; did you mean train.steps")


def test_all_errors_of_all_layers_are_told_at_once() -> None:
    lines = refusal(
        MINIMAL | {"train.steps": "many", "eval.samples": 0},
        {"rollout": {"temprature": 1.0}, "objective.scale": "group", "task.train": "arithmetik"},
        {"train.learning_rate": -1.0, "objective.rule.clip_hgh": 3, "objective.rule.clip_low": "wide"},
    )
    expected = [
        ("b", "unknown key rollout.temprature"),
        ("b", "objective.scale is 'group'"),
        ("c", "unknown key objective.rule.clip_hgh"),
        ("c", "objective.rule.clip_low is 'wide'"),
        ("b", "task.train: unknown task 'arithmetik'; did you mean arithmetic"),
        ("a", "train.steps is 'many'"),
        ("c", "train.learning_rate is -1.0"),
        ("a", "eval.samples is 0"),
    ]
    assert len(lines) == len(expected)
    for origin, text in expected:
        assert any(line.startswith(f"{origin}: ") and text in line for line in lines), (origin, text, lines)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"train.steps": 1.5}, "train.steps is 1.5"),
        ({"train.steps": "5"}, "train.steps is '5'"),
        ({"train.steps": True}, "train.steps is True"),
        ({"train.steps": None}, "train.steps is None"),
        ({"train.learning_rate": float("inf")}, "train.learning_rate is inf"),
        ({"train.learning_rate": float("nan")}, "train.learning_rate is nan"),
        ({"train.weight_decay": float("inf")}, "train.weight_decay is inf"),
        ({"train": 3}, "train is a section"),
        ({"train": {}}, "train is a section"),
        ({"objective": "grpo"}, "objective is a section"),
        ({"objective.rule": "cispo"}, "objective.rule is a section"),
        ({"reward.parts": {}}, "reward.parts is a section"),
        ({"reward.parts": 1.0}, "reward.parts is a section"),
        ({"reward.parts.corect": 1.0}, "unknown reward part 'corect'; did you mean correct?"),
        ({"reward.parts.format": "a"}, "reward.parts.format is 'a'"),
        ({"reward.parts.format.x": 1.0}, "unknown key reward.parts.format.x"),
        ({"train.steps.x": 1}, "unknown key train.steps.x; did you mean train.steps"),
        ({"seed": 3}, "seed is not a knob: give `seeds`"),
        ({"algorithm": "grop"}, "unknown algorithm 'grop'; did you mean grpo"),
        ({"algorithm": None}, "unknown algorithm 'None'"),
        ({"eval.tasks": "arithmetic"}, "eval.tasks is 'arithmetic': input should be a list, e.g. [a, b]"),
        ({"eval.tasks": []}, "eval.tasks is []"),
        ({"eval.tasks": ["arithmetik"]}, "eval.tasks.0: unknown task 'arithmetik'; did you mean arithmetic"),
        ({"eval.template": "plian"}, "eval.template: unknown template 'plian'; did you mean plain?"),
        ({"task.template": "plian"}, "task.template: unknown template 'plian'; did you mean plain?"),
        ({"reward.grader": "numerik"}, "reward.grader: unknown grader 'numerik'; did you mean numeric?"),
        ({"eval.grader": "numerik"}, "eval.grader: unknown grader 'numerik'; did you mean numeric?"),
        ({"task.train": 3}, "task.train is 3"),
        ({"eval.k": [64]}, "eval: k=[64] with samples=16"),
        ({"eval.samples": "x"}, "eval.samples is 'x'"),
        ({"rollout.top_p": 0.9}, "rollout: top_p=0.9, top_k=0 in training"),
        ({"train.updates_per_rollout": 5}, "rollout.prompts_per_step=32 with train.updates_per_rollout=5"),
        ({"train.device": "gpu"}, "train.device is 'gpu'"),
        ({"model.cold_start.type": "sftt"}, "model.cold_start.type is 'sftt': choose among 'none', 'sft'"),
        ({"model.cold_start.steps": 3}, "model.cold_start.type has no default here: set it"),
        ({"model.cold_start.type": "sft"}, "model.cold_start.data has no default: set it"),
        (
            {"model.cold_start": {"type": "sft", "data": "solutions:arithmetik"}},
            "model.cold_start.data: unknown task 'arithmetik'; did you mean arithmetic",
        ),
        ({"model.cold_start": "sft"}, "model.cold_start is a section"),
        (
            {"task.order": "hardest"},
            "task.order is 'hardest': input should be 'uniform', 'curriculum' or 'prioritised'",
        ),
        ({"task.pool": 0}, "task.pool is 0"),
        ({"task.filter": "pass_rate"}, "task.filter is a section"),
        ({"task.filter.type": "passrate"}, "task.filter.type is 'passrate': choose among 'none', 'pass_rate'"),
        ({"task.filter.samples": 3}, "task.filter.type has no default here: set it"),
        ({"task.filter": {"type": "pass_rate", "samples": 0}}, "task.filter.samples is 0"),
        (
            {"task.filter": {"type": "pass_rate", "lowest": 0.6, "highest": 0.4}},
            "task.filter: lowest=0.6, highest=0.4 with samples=8: no number of correct samples lies between them",
        ),
        (
            {"task.filter": {"type": "pass_rate", "samples": 2, "lowest": 0.3, "highest": 0.4}},
            "task.filter: lowest=0.3, highest=0.4 with samples=2: no number",
        ),
        ({"task.filter": {"type": "none", "samples": 3}}, "task.filter.samples is not a key here"),
        ({"rollout.staged.type": "converge"}, "rollout.staged.type is 'converge': choose among 'none', 'at_step'"),
        ({"rollout.staged": {"type": "converged"}}, "rollout.staged.first_tokens has no default: set it"),
        (
            {"rollout.staged": {"type": "at_step", "first_tokens": 20, "step": 1}},
            "rollout.staged.step is 1: input should be greater than or equal to 2",
        ),
        (
            {"rollout.staged": {"type": "converged", "first_tokens": 40}},
            "rollout: staged.first_tokens=40 with max_completion_tokens=40",
        ),
        ({"objective.rule.weight_max": 3.0}, "rule.weight_max does not exist while objective.rule.type=ppo_clip"),
    ],
)
def test_one_mistake_gives_one_line_that_names_its_layer(settings: dict[str, Any], says: str) -> None:
    (line,) = refusal(MINIMAL, settings, {"train.max_grad_norm": 1.0})
    assert says in line
    assert line.startswith("b: ")
    assert line.endswith((".", "?")) or "objective" in line


def test_a_missing_key_is_laid_to_the_first_layer() -> None:
    for key in ("train.steps", "model.source", "task.train"):
        settings = {knob: value for knob, value in MINIMAL.items() if knob != key}
        (line,) = refusal(settings, {"eval.samples": 8})
        assert line.startswith("a: ")
        assert "has no default: set it" in line


def test_an_algorithm_must_be_named() -> None:
    settings = {knob: value for knob, value in MINIMAL.items() if knob != "algorithm"}
    assert refusal(settings) == ["a: no `algorithm` is given; name a preset, e.g. algorithm: grpo."]
    (line,) = refusal(settings, {"objective.scale": "none"})
    assert line == "b: objective knobs without `algorithm`; name a preset to start from."


def test_a_spec_survives_json() -> None:
    resolved = spec(
        {"reward.parts.reaches_answer": 0.2, "rollout.stop": ["\n"], "objective.rule.type": "weighted"}, seed=3
    )
    again = type(resolved).model_validate_json(resolved.model_dump_json())
    assert again == resolved
    assert active(again) == active(resolved)
