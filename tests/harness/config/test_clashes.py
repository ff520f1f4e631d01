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
from tests.harness.run.small import SETTINGS, small_spec

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
    with pytest.raises(TypeError, match="policy-gradient objective is needed"):
        _ = spec.policy_gradient
    with pytest.raises(TypeError, match="preference objective is needed"):
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
    with pytest.raises(RefusedError, match=r"arm: pairs\.type=policy with a policy-gradient algorithm"):
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


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pairs.type": "policy"}, "pairs.type=policy with a policy-gradient algorithm, which learns from rewards"),
        ({**DPO, "pairs.type": "none"}, "pairs.type=none with a preference algorithm"),
        ({**DPO, "rollout.samples_per_prompt": 1}, "rollout.samples_per_prompt=1 with pairs.type=policy: a pair is"),
        ({**DPO, "objective.reference": "round_start"}, "there are no rounds. Set pairs.type to policy"),
        ({**DATASET, **ROUNDS, "objective.reference": "round_start"}, "there are no rounds"),
        ({**DPO, "objective.rule.clip_high": 0.28}, "objective.rule.clip_high"),
        ({"objective.beta": 0.1}, "objective.beta"),
        ({**DPO, "pairs.max_per_prompt": 0}, "pairs.max_per_prompt is 0"),
        ({**DPO, "pairs.max_per_prompt": 3}, "max_per_prompt=3 has no effect while pairing=best_worst"),
        ({**DPO, "pairs.type": "dataset"}, "pairs.data has no default: set it"),
        ({**DATASET, "pairs.pairs_per_step": 2, "train.updates_per_rollout": 4}, "an optimiser step needs a pair"),
        ({**DPO, "rollout.sampler": "round", "rollout.round_steps": 4}, "there is no second round"),
        ({"rollout.round_steps": 4}, "round_steps=4 has no effect while sampler=policy"),
        ({"objective.pass_k": 8, "rollout.samples_per_prompt": 8}, "all sets of a group would be one"),
        ({"algorithm": "kd", "rollout.sampler": "given", "task.retire_at": 0.9}, "that the policy did not write"),
        (ROUNDS, "rollout.sampler=round with objective.rule.type=ppo_clip: the importance ratio is"),
        ({**DPO, "train.updates_per_rollout": 3}, "Choose updates_per_rollout among the divisors of 4"),
        ({**DPO, "reward.parts.process": 1.0, "task.train": "gsm8k"}, "this task does not say what a step is"),
        ({**TWO, "train.device": "cuda:1"}, "each process takes a GPU of its own. Set train.device to cuda"),
        ({**TWO, "objective.aggregation": "micro_token_mean"}, "would depend on how the rows are split"),
        ({**TWO, **DPO, **ROUNDS, "train.sharding": "fully"}, "Set rollout.sampler to policy, or sharding to rows"),
        ({**TWO, "train.sharding": "fully", **SFT}, "a cold start: one process does that on one device"),
        (
            {**TWO, "train.sharding": "fully", "reward.parts.reward_model": 1.0},
            "with a reward model: one process",
        ),
        ({**JEPO, **TWO, "train.sharding": "fully"}, "with a reward from the gold text's likelihood: one process"),
        ({**JEPO, **DPO}, "reward.parts.jepo with a preference algorithm"),
        ({**JEPO, "rollout.sampler": "initial", "algorithm": "reinforce"}, "the bound holds only for reasoning"),
        ({**JEPO, "reward.jepo.bound": "multi_sample"}, "Set both to none, or the bound to one_sample"),
        ({**JEPO, **MANY, "rollout.samples_per_prompt": 1}, "compared with the rest of its group. Raise samples"),
        ({**JEPO, "algorithm": "rloo", "rollout.samples_per_prompt": 1}, "every advantage would be 0"),
        ({"reward.parts": {"jepo": -1.0}}, "the loss would decrease without bound"),
        ({**JEPO, "task.train": LAST_NUMBER}, "with extract=last_number no mark opens the answer"),
        ({**VR_CLI, "task.train": LAST_NUMBER}, "reasoning and answer cannot be told apart. Train on a task with"),
        ({**VR_CLI, "reward.vr_cli.generator": "tiny"}, "reward.vr_cli.generator is 'tiny', but must be builtin:tiny"),
        ({**VR_CLI, "reward.vr_cli.generator": "builtin:tiny"}, "which is the generator by default. Leave it out"),
        ({**VR_CLI, "reward.vr_cli.levels": [[0.2, 0.5], [0.1, 1.0]]}, "the improvements [0.2, 0.1] do not rise"),
        ({**VR_CLI, "reward.vr_cli.levels": [[0.2]]}, "reward.vr_cli.levels"),
    ],
)
def test_what_does_not_fit_together_is_told(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(RefusedError) as caught:
        small_spec(settings)
    assert says in str(caught.value)


def test_several_clashes_are_told_at_once() -> None:
    with pytest.raises(RefusedError) as caught:
        small_spec({**DPO, "rollout.samples_per_prompt": 1, "objective.reference": "round_start"})
    assert "a pair is made of two completions" in str(caught.value)
    assert "there are no rounds" in str(caught.value)


CHAT = "name: chat\ngrader: null\nsplits: {train: {file: chat.jsonl}}\n"


def test_a_task_without_a_grader_serves_given_pairs_only(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(CHAT)
    task = {"task.train": str(tmp_path / "chat.yaml")}
    evaluated = {"eval.tasks": ["arithmetic"]}
    offline = small_spec({**DATASET, **task, **evaluated})
    assert offline.reward.grader is None
    assert code_digests(offline) == {}
    with pytest.raises(RefusedError, match="has no grader, and rollouts are ranked by their reward"):
        small_spec({**DPO, **task, **evaluated})
    with pytest.raises(RefusedError, match="has no grader, and rollouts are ranked"):
        small_spec({**DPO, **task, **evaluated, "reward.grader": "numeric"})
    with pytest.raises(RefusedError, match=r"the first of eval\.tasks has no grader"):
        small_spec({**DATASET, **task})
