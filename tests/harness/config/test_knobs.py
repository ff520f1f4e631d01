from __future__ import annotations

from typing import Any

from harness.config.knobs import active, governor, knob_facts, spec_knobs
from harness.settings.words import KnobFacts
from tests.harness.config.cases import spec


def test_active_knobs_are_flat_and_plain() -> None:
    knobs = active(spec({"reward.parts.reaches_answer": 0.2}))
    assert knobs["train.steps"] == 5
    assert knobs["objective.rule.clip_low"] == 0.2
    assert knobs["reward.parts.correct"] == 1.0
    assert knobs["reward.parts.reaches_answer"] == 0.2
    assert knobs["eval.k"] == [1, 2, 4, 8, 16]
    assert knobs["model.cold_start.type"] == "none"
    assert knobs["seed"] == 0
    assert not any(isinstance(value, dict | tuple) for value in knobs.values())


def test_knobs_of_another_type_do_not_exist() -> None:
    clipped = active(spec())
    weighted = active(spec({"objective.rule.type": "weighted"}))
    assert "objective.rule.clip_low" in clipped
    assert not any("clip" in knob for knob in weighted)
    assert not any(knob.startswith("model.cold_start.") and knob != "model.cold_start.type" for knob in clipped)


def test_who_decides_whether_a_knob_exists() -> None:
    assert governor("objective.scale_eps") == "objective.scale"
    assert governor("objective.rule.clip_low") == "objective.rule.type"
    assert governor("model.cold_start.steps") == "model.cold_start.type"
    assert governor("task.filter.lowest") == "task.filter.type"
    assert governor("rollout.staged.window_steps") == "rollout.staged.type"
    for always in (
        "objective.scale",
        "objective.rule.type",
        "model.cold_start.type",
        "task.pool",
        "train.steps",
        "seed",
    ):
        assert governor(always) is None


def test_all_knobs_cover_the_active_ones_once() -> None:
    sft = {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"objective.rule.type": "weighted"},
        sft,
        {"task.filter.type": "pass_rate"},
        {"rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 3}},
        {"rollout.staged": {"type": "converged", "first_tokens": 8}},
    )
    for settings in variants:
        unknown = [k for k in active(spec(settings)) if k not in spec_knobs() and not k.startswith("reward.parts.")]
        assert not unknown


def test_every_knob_says_what_it_does_and_what_it_takes() -> None:
    for knob, facts in knob_facts().items():
        assert facts.description.strip(" :|"), f"{knob} has no description"
        assert all(meaning.rpartition(": ")[2].strip() for meaning in facts.description.split(" | ")), knob
        assert facts.type, knob


def test_facts_are_those_of_the_declarations() -> None:
    facts = knob_facts()
    assert facts["train.weight_decay"] == KnobFacts(
        "float", "0.0", ">= 0", "weight decay: beside the gradient's step with adamw and muon, within it with sgd"
    )
    assert facts["eval.samples"].range == ">= 1, <= 100,000"
    assert facts["eval.top_p"].range == "> 0, <= 1"
    assert (facts["budget.tokens"].type, facts["budget.tokens"].default) == ("int | null", "null")
    assert facts["train.learning_rate"].default == ""
    assert (facts["eval.tasks"].type, facts["eval.tasks"].range) == ("list of task name", ">= 1 items, <= 100 items")
    assert (facts["rollout.engine"].type, facts["rollout.engine"].default) == ("auto | torch | vllm", "auto")
    assert (facts["task.template"].default, facts["objective.aggregation"].default) == ("the task's", "the algorithm's")
    assert "ppo_clip" in facts["objective.rule.type"].type.split(" | ")
    assert facts["objective.kl.where"].default == "none"
    staged = facts["rollout.staged.type"]
    assert (staged.type, staged.default) == ("none | at_step | converged", "none")
    assert staged.description.startswith("none: Completions may be max_completion_tokens long from the first step on |")
    assert facts["rollout.staged.first_tokens"].description.startswith("at_step: limit of a completion before `step` |")
