from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import plugins
from harness.config import hashing
from harness.config.hashing import (
    base_evaluation_hash,
    data_digests,
    digest,
    evaluation_hash,
    pass_rates_hash,
    semantic_hash,
    starting_point_hash,
    training_hash,
)
from harness.config.knobs import active, spec_knobs
from harness.config.model_source import TINY
from harness.errors import RefusedError
from harness.shelves.learned.stages.judge import judge_hash
from harness.shelves.learned.stages.reward_model import reward_model_hash
from tests.harness.config.cases import spec
from tests.refusals import refuses

SFT = {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}
MODES = {
    "task.template": "modes_digits",
    "model.cold_start": {"type": "sft", "data": "solutions:arithmetic", "template": "modes_digits"},
}


@pytest.mark.parametrize(
    "settings",
    [
        {"model.source": f"path:{TINY}"},
        # Written out or left to its default, it is the same.
        {"eval.samples": 16, "eval.k": [1, 2, 4, 8, 16], "eval.template": "plain"},
        {"objective.rule.type": "ppo_clip", "objective.scale": "group_std"},
        {"algorithm": "dr_grpo", "objective.scale": "group_std", "objective.aggregation": "seq_mean_token_mean"},
    ],
)
def test_what_cannot_change_the_numbers_does_not_change_the_hash(settings: dict[str, Any]) -> None:
    assert semantic_hash(spec(settings)) == semantic_hash(spec())


def test_the_kind_of_device_counts_but_not_which_one() -> None:
    one, other = spec({"train.device": "cuda:0"}), spec({"train.device": "cuda:1"})
    assert semantic_hash(one) == semantic_hash(other) != semantic_hash(spec({"train.device": "cpu"}))


# One other value for every knob that is active in the minimal spec, or in that of the cold start.
OTHER: dict[str, Any] = {
    "train.device": "cuda",
    "train.checkpoint_every": 3,
    "model.source": "hf:some/model",
    "model.cold_start.type": "none",
    "model.cold_start.template": "boxed",
    "model.cold_start.steps": 7,
    "model.cold_start.batch_size": 7,
    "model.cold_start.learning_rate": 7e-4,
    "model.cold_start.weight_decay": 0.7,
    "model.cold_start.max_completion_tokens": 7,
    "model.cold_start.seed": 7,
    "model.dtype": "bfloat16",
    "model.head_dtype": "float32",
    "model.chat_template": "plain",
    "model.trust_remote_code": True,
    "model.lora.type": "lora",
    "task.train": "gsm8k",
    "task.template": "boxed",
    "task.order": "curriculum",
    "task.pool": 70,
    "task.retire_at": 0.9,
    "task.filter.type": "pass_rate",
    "reward.parts.correct": 0.7,
    "reward.parts.reaches_answer": 0.7,
    "reward.noise.false_positive_rate": 0.7,
    "reward.noise.false_negative_rate": 0.7,
    "reward.grader": "exact",
    "rollout.engine": "vllm",
    "rollout.dtype": "float16",
    "rollout.prompts_per_step": 7,
    "rollout.samples_per_prompt": 7,
    "rollout.max_completion_tokens": 7,
    "rollout.temperature": 0.7,
    "rollout.stop": ["7"],
    "objective.baseline": "leave_one_out",
    "objective.scale": "none",
    "objective.scale_ddof": 0,
    "objective.pass_k": 2,
    "objective.scale_eps": 0.7,
    "objective.ratio": "sequence_mean",
    "objective.aggregation": "token_mean",
    "objective.rule.type": "weighted",
    "objective.rule.clip_low": 0.7,
    "objective.rule.clip_high": 0.7,
    "objective.rule.dual_clip": 7.0,
    "objective.advantage_sign": "positive",
    "objective.select.type": "clip_cov",
    "objective.kl.where": "loss",
    "objective.sequence_penalty": 0.7,
    "objective.entropy.bonus": 0.7,
    "objective.entropy.adaptive.type": "step_both_ways",
    "objective.overlong.type": "mask_after",
    "objective.overlong.penalty": -0.7,
    "objective.zero_std": "drop",
    "objective.sampler_correction.type": "token_truncate",
    "train.steps": 7,
    "train.updates_per_rollout": 2,
    "train.epochs": 7,
    "train.learning_rate": 7e-4,
    "train.lr_schedule": "linear",
    "train.warmup_steps": 7,
    "train.weight_decay": 0.7,
    "train.max_grad_norm": 0.7,
    "train.micro_batch_tokens": 700,
    "train.logits_chunk_tokens": 70,
    "train.activation_checkpointing": True,
    "train.reference_rows": 7,
    "train.optimizer_reset": "per_rollout",
    "train.optimizer.type": "sgd",
    "train.optimizer.beta1": 0.7,
    "train.optimizer.beta2": 0.7,
    "train.optimizer.eps": 0.7,
    "eval.tasks": ["gsm8k"],
    "eval.problems": 7,
    "eval.template": "boxed",
    "eval.every": 7,
    "eval.samples": 17,
    "eval.curve_samples": 7,
    "eval.k": [1],
    "eval.temperature": 0.7,
    "eval.top_p": 0.7,
    "eval.top_k": 7,
    "eval.max_completion_tokens": 7,
    "eval.stop": ["7"],
    "eval.grader": "exact",
    "budget.tokens": 700,
    "budget.trained_tokens": 700,
    "budget.flops": 700.0,
}
# Have one allowed value so far, refuse others, or are excluded on purpose.
FIXED = {
    *("model.cold_start.data", "rollout.vllm_memory_frac", "rollout.top_p", "rollout.top_k"),
    *("train.token_records_max_tokens", "train.processes", "train.sharding", "reward.allow_code"),
    "trainer.type",  # tests/harness/trainers changes it
}

FILTER = {"task.filter": {"type": "pass_rate"}}
GUESS = {"task.train": "guess"}
SLICED = {"rollout.partial": {"type": "slices", "slice_tokens": 10}}
AT_STEP = {"rollout.staged": {"type": "at_step", "first_tokens": 20, "step": 3}}
LORA = {"model.lora": {"type": "lora"}}
CONVERGED = {"rollout.staged": {"type": "converged", "first_tokens": 20}}
# Where the knob exists, and settings with another value of it.
TAUGHT = {"algorithm": "gkd", "teacher.type": "model", "teacher.source": "builtin:tiny"}
MIXED = TAUGHT | {"rollout.sampler": "teacher"}
ELSEWHERE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "objective.distill.where": (MIXED | {"algorithm": "sft"}, TAUGHT),
    "task.direct_frac": (MODES, {"task.direct_frac": 0.5}),
    "model.cold_start.direct_frac": (MODES, {"model.cold_start.direct_frac": 0.5}),
    "model.cold_start.stop_frac": (MODES, {"model.cold_start.stop_frac": 0.5}),
    "budget.teacher_tokens": (TAUGHT, {"budget.teacher_tokens": 700}),
    "teacher.source": (TAUGHT, {"teacher.source": "scratch:tiny"}),
    "teacher.template": (TAUGHT, {"teacher.template": "solution_shown"}),
    "teacher.cold_start.type": (TAUGHT, {"teacher.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}),
    "rollout.policy_frac": (MIXED, {"rollout.policy_frac": 0.5}),
    "objective.credit": ({"reward.parts.process": 1.0}, {"objective.credit": "steps"}),
    "rollout.sampler": ({"algorithm": "reinforce"}, {"rollout.sampler": "initial"}),
    "task.filter.samples": (FILTER, {"task.filter.samples": 7}),
    "task.filter.lowest": (FILTER, {"task.filter.lowest": 0.07}),
    "task.filter.highest": (FILTER, {"task.filter.highest": 0.7}),
    "task.filter.problems": (FILTER, {"task.filter.problems": 70}),
    "model.lora.rank": (LORA, {"model.lora.rank": 7}),
    "model.lora.alpha": (LORA, {"model.lora.alpha": 7.0}),
    "model.lora.target_modules": (LORA, {"model.lora.target_modules": ["q_proj"]}),
    "rollout.staleness_steps": ({}, {"rollout.staleness_steps": 1}),
    "rollout.max_turns": (GUESS, {"rollout.max_turns": 2}),
    "rollout.partial.type": ({}, SLICED),
    "rollout.partial.slice_tokens": (SLICED, {"rollout.partial.slice_tokens": 20}),
    "train.optimizer.momentum": ({"train.optimizer.type": "sgd"}, {"train.optimizer.momentum": 0.7}),
    "rollout.staged.type": ({}, AT_STEP),
    "rollout.staged.first_tokens": (AT_STEP, {"rollout.staged.first_tokens": 7}),
    "rollout.staged.step": (AT_STEP, {"rollout.staged.step": 4}),
    "rollout.staged.window_steps": (CONVERGED, {"rollout.staged.window_steps": 7}),
    "rollout.staged.min_gain": (CONVERGED, {"rollout.staged.min_gain": 0.7}),
}


@pytest.mark.parametrize("knob", OTHER)
def test_every_other_knob_changes_the_hash_of_training_or_of_evaluation(knob: str) -> None:
    """And only one of them, so that nothing in `eval` ever trains anew; but for what only watches training."""
    base = SFT | ({"eval.k": [1, 2]} if knob == "eval.samples" else {})
    one, other = spec(base), spec(base, {knob: OTHER[knob]})
    changes = [hash_of(one) != hash_of(other) for hash_of in (training_hash, evaluation_hash)]
    if knob in ("eval.every", "eval.curve_samples"):
        assert changes == [False, False]
    elif knob == "task.train":  # what is held out is its other half, if nothing else is said
        assert changes == [True, True]
    else:
        assert changes == ([False, True] if knob.startswith("eval.") else [True, False])
    assert semantic_hash(one) != semantic_hash(other)


@pytest.mark.parametrize("knob", ELSEWHERE)
def test_a_knob_of_another_point_changes_the_hash_there(knob: str) -> None:
    base, settings = ELSEWHERE[knob]
    assert training_hash(spec(base, settings)) != training_hash(spec(base))
    assert semantic_hash(spec(base, settings)) != semantic_hash(spec(base))


def test_every_active_knob_is_in_the_table() -> None:
    knobs = {knob for settings in (SFT, FILTER, LORA, AT_STEP, CONVERGED) for knob in active(spec(settings))} - {"seed"}
    assert knobs <= set(OTHER) | set(ELSEWHERE) | FIXED
    assert {knob for knob in OTHER if not knob.startswith("reward.parts.")} <= set(spec_knobs())


def test_another_share_of_the_gpu_gives_the_same_numbers() -> None:
    for hash_of in (training_hash, evaluation_hash, semantic_hash):
        assert hash_of(spec({"rollout.vllm_memory_frac": 0.7})) == hash_of(spec())
        assert hash_of(spec({"train.token_records_max_tokens": 0})) == hash_of(spec())
        assert hash_of(spec({"train.processes": 4, "train.sharding": "fully"})) == hash_of(spec())


def test_what_is_made_of_the_start_knows_the_engine_but_no_adapters() -> None:
    plain, adapted, other_engine = spec(FILTER), spec(FILTER, LORA), spec(FILTER, {"rollout.engine": "vllm"})
    for hash_of in (base_evaluation_hash, pass_rates_hash):
        assert hash_of(adapted) == hash_of(plain) != hash_of(other_engine)
        assert hash_of(spec(FILTER, {"rollout.dtype": "bfloat16"})) != hash_of(plain)
        assert hash_of(spec(FILTER, {"train.optimizer.type": "muon"})) == hash_of(plain)


def test_the_seed_changes_the_hash_of_what_draws_noise() -> None:
    one, other = spec(seed=1), spec(seed=2)
    assert training_hash(one) != training_hash(other) and semantic_hash(one) != semantic_hash(other)
    assert evaluation_hash(one) == evaluation_hash(other), "it is the same evaluation of another policy"
    assert base_evaluation_hash(one) != base_evaluation_hash(other)
    assert starting_point_hash(one) == starting_point_hash(other)


def test_an_inactive_knob_does_not_exist_for_the_hash() -> None:
    without_scale = {"objective.scale": "none"}
    assert "objective.scale_eps" not in active(spec(without_scale))
    assert semantic_hash(spec({"objective.scale_eps": 0.7}, without_scale)) == semantic_hash(spec(without_scale))


def test_arms_share_the_cold_start_and_the_base_evaluation() -> None:
    one, other = spec(SFT), spec(SFT, {"objective.scale": "none", "train.steps": 9, "rollout.temperature": 0.5})
    assert starting_point_hash(one) == starting_point_hash(other)
    assert base_evaluation_hash(one) == base_evaluation_hash(other)
    assert starting_point_hash(one) != starting_point_hash(spec(SFT, {"model.cold_start.steps": 3}))
    assert base_evaluation_hash(one) != base_evaluation_hash(spec(SFT, {"eval.problems": 3}))
    assert base_evaluation_hash(one) != base_evaluation_hash(spec())


def test_cells_that_draw_and_grade_alike_share_the_pass_rates() -> None:
    def rates(settings: dict[str, Any], seed: int = 0) -> str:
        return pass_rates_hash(spec(SFT, FILTER, settings, seed=seed))

    shared = {
        "task.filter.lowest": 0.1,
        "task.filter.highest": 0.5,
        "task.pool": 40,
        "task.order": "curriculum",
        "rollout.prompts_per_step": 7,
        "rollout.samples_per_prompt": 7,
        "reward.parts.correct": 0.5,
        "objective.scale": "none",
        "train.steps": 9,
        "eval.problems": 7,
        "eval.template": "boxed",
    }
    assert rates(shared, seed=1) == rates({})
    changes = [
        *({knob: value} for knob, value in OTHER.items() if knob.startswith("model.cold_start.")),
        {"model.source": "hf:some/model"},
        {"task.train": "gsm8k"},
        {"task.template": "boxed"},
        {"task.filter.samples": 7},
        {"task.filter.problems": 70},
        {"reward.grader": "exact"},
        {"rollout.max_completion_tokens": 7},
        {"rollout.temperature": 0.7},
        {"rollout.stop": ["7"]},
        {"train.device": "cuda"},
    ]
    assert len({rates({}), *map(rates, changes)}) == 1 + len(changes)


def test_cells_that_draw_and_grade_alike_share_the_reward_model() -> None:
    part = {"reward.parts": {"correct": 0.0, "reward_model": 1.0}}

    def model(settings: dict[str, Any], seed: int = 0) -> str:
        return reward_model_hash(spec(SFT, part, settings, seed=seed))

    shared = {
        "reward.parts": {"correct": 0.0, "reward_model": 0.5, "format": 1.0},
        "task.pool": 40,
        "rollout.samples_per_prompt": 7,
        "objective.kl.where": "loss",
        "train.steps": 9,
        "eval.problems": 7,
    }
    assert model(shared, seed=1) == model({})
    options = {"prompts": 70, "samples_per_prompt": 7, "label_noise_rate": 0.07, "steps": 7, "batch_size": 7}
    changes: list[dict[str, Any]] = [
        *({f"reward.reward_model.{name}": value} for name, value in options.items()),
        {"reward.reward_model.learning_rate": 7e-4},
        {"reward.reward_model.seed": 7},
        {"model.cold_start.steps": 7},
        {"task.train": "gsm8k"},
        {"task.template": "boxed"},
        {"reward.grader": "exact"},
        {"rollout.max_completion_tokens": 7},
        {"rollout.temperature": 0.7},
        {"train.device": "cuda"},
    ]
    assert len({model({}), *map(model, changes)}) == 1 + len(changes)


def test_a_judge_is_shared_and_its_template_is_known_by_content(tmp_path: Path) -> None:
    part = {"reward.parts": {"correct": 0.0, "pairwise": 1.0}}

    def hashes(settings: dict[str, Any], seed: int = 0) -> tuple[str, str]:
        plugins.use([], [])
        chosen = spec(part, settings, seed=seed)
        return judge_hash(chosen), training_hash(chosen)

    plain = hashes({})
    for settings in ({"reward.pairwise.tie": 0.5}, {"objective.scale": "none"}, {"train.steps": 9}):
        assert hashes(settings, seed=1)[0] == plain[0]
        assert hashes(settings)[1] != plain[1]
    made: list[dict[str, Any]] = [
        {"reward.pairwise.cold_start_steps": 7},
        {"reward.pairwise.label_noise_rate": 0.07},
        {"reward.pairwise.template": "judge"},
        {"rollout.temperature": 0.7},
        {"task.train": "gsm8k"},
    ]
    assert len({plain[0], *(hashes(settings)[0] for settings in made)}) == 1 + len(made)

    written = []
    texts = {"a": "{problem} {first} {second}", "b": "{problem} {first} {second}", "c": "{problem}: {first} {second}"}
    for folder, text in texts.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(f"text: '{text}'")
        written.append(hashes({"reward.pairwise.template": str(tmp_path / folder / "mine.yaml")}))
    assert written[0] == written[1]
    assert written[0][0] != written[2][0] and written[0][1] != written[2][1]


def test_weights_are_known_by_content_not_by_path(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(TINY, tmp_path / name)
    assert semantic_hash(spec({"model.source": f"path:{tmp_path / 'a'}"})) == semantic_hash(spec())
    with (tmp_path / "b" / "model.safetensors").open("r+b") as handle:
        handle.seek(-1, 2)
        last = handle.read(1)
        handle.seek(-1, 2)
        handle.write(bytes([last[0] ^ 1]))
    assert semantic_hash(spec({"model.source": f"path:{tmp_path / 'b'}"})) != semantic_hash(spec())


def write_task(folder: Path, answer: str = "4") -> str:
    folder.mkdir()
    (folder / "rows.jsonl").write_text(json.dumps({"problem": "2+2=", "answer": answer}) + "\n")
    task = folder / "mine.yaml"
    task.write_text("name: mine\ngrader: numeric\nsplits:\n  train: {file: rows.jsonl}\n  test: {file: rows.jsonl}\n")
    return str(task)


def test_a_frozen_generator_is_known_by_content_not_by_path(tmp_path: Path) -> None:
    for name in ("here", "there", "changed"):
        shutil.copytree(TINY, tmp_path / name)
    config = tmp_path / "changed" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 1e-5}))
    scored = {"reward.parts.vr_cli": 1.0, "model.source": "scratch:tiny"}
    here, there, changed = (
        spec(scored, {"reward.vr_cli.generator": f"path:{tmp_path / name}"}) for name in ("here", "there", "changed")
    )
    for hash_of in (training_hash, semantic_hash):
        assert hash_of(here) == hash_of(there) != hash_of(changed) != hash_of(spec(scored))
    assert data_digests(here) != data_digests(changed)
    assert base_evaluation_hash(here) == base_evaluation_hash(changed), "it rewards, and nothing else"


@pytest.mark.parametrize("knob", ["task.train", "eval.tasks"])
def test_problems_are_known_by_content_not_by_path(tmp_path: Path, knob: str) -> None:
    def with_task(name: str) -> str:
        return semantic_hash(spec({knob: [name] if knob == "eval.tasks" else name, "eval.k": [1]}))

    here, there = write_task(tmp_path / "here"), write_task(tmp_path / "there")
    other = write_task(tmp_path / "other", answer="5")
    assert with_task(here) == with_task(there)
    assert with_task(here) != with_task(other)


def test_demonstrations_are_known_by_content_not_by_path(tmp_path: Path) -> None:
    def with_data(name: str, content: str) -> tuple[str, str]:
        path = tmp_path / name
        path.write_text(content)
        sft = spec({"model.cold_start": {"type": "sft", "data": str(path)}})
        return starting_point_hash(sft), semantic_hash(sft)

    assert with_data("a.jsonl", "one") == with_data("b.jsonl", "one")
    same, changed = with_data("a.jsonl", "one"), with_data("a.jsonl", "two")
    assert same[0] != changed[0]
    assert same[1] != changed[1]
    with refuses(RefusedError, "config.demonstrations_unreadable", data="none.jsonl"):
        semantic_hash(spec({"model.cold_start": {"type": "sft", "data": "none.jsonl"}}))


def test_raising_the_numerics_version_renames_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    before = semantic_hash(spec()), starting_point_hash(spec()), base_evaluation_hash(spec())
    monkeypatch.setattr(hashing, "NUMERICS_VERSION", hashing.NUMERICS_VERSION + 1)
    after = semantic_hash(spec()), starting_point_hash(spec()), base_evaluation_hash(spec())
    assert all(a != b for a, b in zip(before, after, strict=True))


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), documents, min_size=2, max_size=5))
def test_the_order_of_keys_does_not_count(document: dict[str, Any]) -> None:
    backwards = dict(reversed(list(document.items())))
    assert digest(document) == digest(backwards)


@given(documents, documents)
def test_different_documents_have_different_digests(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (digest(one) == digest(other)) == same
