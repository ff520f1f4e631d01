"""What the sections of a spec cannot know by themselves; what is asked of rewards alone is in test_run_spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from algorithms import preset
from harness.config.hashing import code_digests
from harness.config.knobs import active, governor
from harness.config.resolve import Layer, resolve
from harness.config.rollout import DatasetPairs, PolicyPairs
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from tests.frozen import frozen
from tests.harness.run.small import SETTINGS, small_spec
from tests.refusals import refuses

DPO = {"algorithm": "dpo"}
DATASET = {**DPO, "pairs.type": "dataset", "pairs.data": "pairs.jsonl"}
TWO = {"train.processes": 2}
SFT = {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}
ROUNDS = {"rollout.sampler": "round", "rollout.round_steps": 2}
JEPO = {"reward.parts.jepo": 1.0}
VR_CLI = {"reward.parts.vr_cli": 1.0}
MANY = {"reward.jepo.bound": "multi_sample", "objective.baseline": "none", "objective.scale": "none"}
LAST_NUMBER = str(Path(__file__).with_name("last_number.yaml"))


def test_a_preference_algorithm_learns_from_the_policys_pairs_unless_told_otherwise() -> None:
    spec = small_spec(DPO)
    assert spec.objective == spec.preference == preset("dpo")
    assert spec.pairs == PolicyPairs()
    assert isinstance(small_spec(DATASET).pairs, DatasetPairs)
    with pytest.raises(TypeError):
        _ = spec.policy_gradient
    with pytest.raises(TypeError):
        _ = small_spec().preference


def test_pairs_exist_for_preference_algorithms_only() -> None:
    assert not [knob for knob in active(small_spec()) if knob.startswith("pairs.")]
    assert [knob for knob in active(small_spec(DPO)) if knob.startswith("pairs.")] == ["pairs.type", "pairs.pairing"]
    assert "pairs.max_per_prompt" in active(small_spec({**DPO, "pairs.pairing": "all"}))
    assert governor("pairs.type") == "objective.link"
    assert governor("pairs.pairing") == "pairs.type"
    assert governor("pairs.max_per_prompt") == "pairs.pairing"


def test_naming_an_algorithm_without_pairs_drops_those_of_the_layers_below() -> None:
    layers = [Layer("profile", SETTINGS), Layer("base", {**DPO, "pairs.pairing": "all"})]
    assert resolve([*layers, Layer("arm", {"algorithm": "grpo"})], 0) == small_spec()
    simpo = resolve([*layers, Layer("arm", {"algorithm": "simpo"})], 0)
    assert simpo.pairs == PolicyPairs(pairing="all")
    with refuses(RefusedError, "clash"):
        resolve([*layers, Layer("arm", {"algorithm": "grpo", "pairs": {"type": "policy"}})], 0)


def test_a_spec_of_either_family_survives_json() -> None:
    for settings in ({}, DPO, {**DPO, **ROUNDS, "objective.reference": "round_start"}, DATASET):
        spec = small_spec(settings)
        assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_given_pairs_need_no_group_of_completions() -> None:
    assert (
        small_spec({**DATASET, "rollout.samples_per_prompt": 1, "rollout.prompts_per_step": 3}).pairs.type == "dataset"
    )


def test_naming_the_data_says_where_pairs_come_from() -> None:
    assert small_spec({**DPO, "pairs.data": "pairs.jsonl"}) == small_spec(DATASET)


def test_rounds_have_a_length_only_where_there_are_rounds() -> None:
    assert active(small_spec(ROUNDS | {"algorithm": "rft"}))["rollout.round_steps"] == 2
    assert "rollout.round_steps" not in active(small_spec())
    assert governor("rollout.round_steps") == "rollout.sampler"


CLASHES: list[dict[str, Any]] = [
    {"pairs.type": "policy"},
    {**DPO, "pairs.type": "none"},
    {**DPO, "rollout.samples_per_prompt": 1},
    {**DPO, "objective.reference": "round_start"},
    {**DATASET, **ROUNDS, "objective.reference": "round_start"},
    {**DPO, "objective.rule.clip_high": 0.28},
    {"objective.beta": 0.1},
    {**DPO, "pairs.max_per_prompt": 0},
    {**DPO, "pairs.max_per_prompt": 3},
    {**DPO, "pairs.type": "dataset"},
    {**DATASET, "pairs.pairs_per_step": 2, "train.updates_per_rollout": 4},
    {**DPO, "rollout.sampler": "round", "rollout.round_steps": 4},
    {"rollout.round_steps": 4},
    {"objective.pass_k": 8, "rollout.samples_per_prompt": 8},
    {"algorithm": "kd", "rollout.sampler": "given", "task.retire_at": 0.9},
    ROUNDS,
    {**DPO, "train.updates_per_rollout": 3},
    {**DPO, "reward.parts.process": 1.0, "task.train": "gsm8k"},
    {**TWO, "train.device": "cuda:1"},
    {**TWO, "objective.aggregation": "micro_token_mean"},
    {**TWO, **DPO, **ROUNDS, "train.sharding": "fully"},
    {**TWO, "train.sharding": "fully", **SFT},
    {**TWO, "train.sharding": "fully", "reward.parts.reward_model": 1.0},
    {**JEPO, **TWO, "train.sharding": "fully"},
    {**JEPO, **DPO},
    {**JEPO, "rollout.sampler": "initial", "algorithm": "reinforce"},
    {**JEPO, "reward.jepo.bound": "multi_sample"},
    {**JEPO, **MANY, "rollout.samples_per_prompt": 1},
    {**JEPO, "algorithm": "rloo", "rollout.samples_per_prompt": 1},
    {"reward.parts": {"jepo": -1.0}},
    {**JEPO, "task.train": LAST_NUMBER},
    {**VR_CLI, "task.train": LAST_NUMBER},
    {**VR_CLI, "reward.vr_cli.generator": "tiny"},
    {**VR_CLI, "reward.vr_cli.generator": "builtin:tiny"},
    {**VR_CLI, "reward.vr_cli.levels": [[0.2, 0.5], [0.1, 1.0]]},
    {**VR_CLI, "reward.vr_cli.levels": [[0.2]]},
    {**DPO, "rollout.samples_per_prompt": 1, "objective.reference": "round_start"},
]


def test_what_does_not_fit_together_is_told() -> None:
    told = ""
    for settings in CLASHES:
        with pytest.raises(RefusedError) as caught:
            small_spec(settings)
        said = str(caught.value).replace(str(Path(__file__).parent), "...")
        told += f"{settings}\n    {said}\n".replace(str(Path(__file__).parent), "...")
    frozen("config/clashes", told)


CHAT = "name: chat\ngrader: null\nsplits: {train: {file: chat.jsonl}}\n"


def test_a_task_without_a_grader_serves_given_pairs_only(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(CHAT)
    task = {"task.train": str(tmp_path / "chat.yaml")}
    evaluated = {"eval.tasks": ["arithmetic"]}
    offline = small_spec({**DATASET, **task, **evaluated})
    assert offline.reward.grader is None
    assert code_digests(offline) == {}
    for grader in ({}, {"reward.grader": "numeric"}):
        with refuses(RefusedError, "clash"):
            small_spec({**DPO, **task, **evaluated, **grader})
    with refuses(RefusedError, "config.first_task_without_grader"):
        small_spec({**DATASET, **task})
