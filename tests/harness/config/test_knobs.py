from __future__ import annotations

from typing import Any

from harness.config.knobs import active, governor, knob_facts, spec_knobs
from tests.frozen import frozen
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
    shown = ["train.weight_decay", "eval.samples", "eval.top_p", "budget.tokens", "train.learning_rate", "eval.tasks"]
    shown += ["rollout.engine", "task.template", "objective.aggregation", "objective.rule.type", "objective.kl.where"]
    shown += ["rollout.staged.type", "rollout.staged.first_tokens"]
    facts = knob_facts()
    frozen("config/knobs", "\n".join(f"{knob}: {facts[knob]}" for knob in shown))
