"""The pure parts of the comparison with TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_rewards import hash_is_even, starts_with_answer
from grpo_step import Setting, account, parse, settings, unequal, work
from pairs import compare
from workload import NEVER, Workload, model_source, settings_of, without_end, workload_of, write_prompts

from harness.models.language_model import load_model
from harness.models.tiny import tiny_tokenizer
from harness.run.prompts import prompt_order, training_prompts


def row(seconds: float, **more: Any) -> dict[str, Any]:
    counts = {"completions": 256.0, "generated_tokens": 2560.0, "reward": 0.5}
    return {"seconds": seconds, **counts, "tokens_in_loss": 2560.0, "tokens_trained": 2000.0} | more


def test_both_sides_have_the_same_terms() -> None:
    spec = Workload().spec()
    assert spec.model.source == "builtin:tiny"
    assert (spec.rollout.prompts_per_step, spec.rollout.samples_per_prompt) == (32, 8)
    assert (spec.rollout.max_completion_tokens, spec.rollout.temperature) == (40, 1.0)
    assert (spec.train.reference_rows, spec.optimizer_steps_per_rollout) == (0, 1)
    objective = spec.policy_gradient
    assert (objective.aggregation, objective.scale, objective.kl.where) == ("seq_mean_token_mean", "group_std", "none")
    assert Workload(scale="none").spec().policy_gradient.scale == "none"
    assert Workload.from_json(Workload(seed=3).to_json()) == Workload(seed=3)


def test_trl_reads_the_prompts_that_a_cell_draws(tmp_path: Path) -> None:
    workload = Workload(prompts=4, steps=3, seed=5)
    write_prompts(workload, tmp_path / "prompts.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    spec = workload.spec()
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    drawn = [problem for step in (1, 2, 3) for problem in order.draw(step, 4, 0.0)]
    assert [(row["prompt"], row["answer"]) for row in rows] == [(p.problem, p.answer) for p in drawn]


def test_completions_cannot_end_at_full_length() -> None:
    language_model = load_model("builtin:tiny")
    without_end(language_model)
    (end,) = language_model.eos_token_ids
    assert end >= language_model.model.config.vocab_size
    assert language_model.tokenizer.eos_token == NEVER
    assert language_model.decode(language_model.encode("3+5=")) == "3+5="


@pytest.mark.parametrize(
    ("text", "reward"), [("8,17#17", 1), ("8,17#173,2", 1), ("8,17#1", 0), ("17", 0), ("8#9#17", 0)]
)
def test_the_reward_at_full_length(text: str, reward: float) -> None:
    assert starts_with_answer(text, "17") == reward


def test_the_same_work_is_not_complained_about() -> None:
    ours = work([row(1.0), row(3.0, reward=0.7)])
    assert ours["mean_length"] == 10
    assert (ours["reward_first"], ours["reward_last"], ours["reward"]) == (0.5, 0.7, 0.6)
    assert unequal(ours, work([row(2.0), row(2.0, reward=0.65)])) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completions": 128.0, "generated_tokens": 1280.0}, "completions a step"),
        ({"generated_tokens": 2200.0}, "mean length"),
        ({"reward": 0.3}, "reward"),
    ],
)
def test_other_work_is_found(change: dict[str, float], said: str) -> None:
    found = unequal(work([row(1.0)]), work([row(1.0, **change)]))
    assert found
    assert all(said in one for one in found)


def test_the_account_of_a_case_names_the_fastest_settings() -> None:
    entrants = [
        Setting("ours", "torch engine", 1, {}),
        Setting("ours", "torch engine", 2, {}),
        Setting("trl", "base", 2, {}),
    ]
    times = dict(zip((s.name for s in entrants), ([3.0, 3.0], [1.0, 2.0], [4.0, 4.0]), strict=True))
    rows = {name: [row(value) for value in values] for name, values in times.items()}
    case = account(entrants, rows, compare({s.name: s.side for s in entrants}, times, "ours", "trl"))
    assert case["ratio"] == 0.375
    assert case["ours"]["threads"] == 2
    assert case["trl"]["seconds_per_step"] == 4
    assert set(case["ours"]["all_settings_s"]) == {entrants[0].name, entrants[1].name}


def test_who_takes_part() -> None:
    usual = settings("cpu", [1, 2], explore=False)
    assert {setting.side for setting in usual} == {"ours", "trl"}
    assert len({setting.name for setting in usual}) == len(usual)
    assert {setting.side for setting in settings("cpu", [2], explore=True)} == {"trl"}
    named = settings("cpu", [1], explore=False, names=["static cache"])
    assert [setting.options for setting in named] == [{}, {"cache_implementation": "static"}]
    assert all(setting.options["bf16"] for setting in settings("cuda", [8], explore=True))


def test_the_arguments(tmp_path: Path) -> None:
    assert parse(["--json"]).case == ["varying", "full"]
    assert parse(["--case", "full"]).case == ["full"]
    with pytest.raises(SystemExit):
        parse(["--pairs", "0"])
    with pytest.raises(SystemExit):
        parse(["--trl", "bf16 weights"])
    assert model_source(str(tmp_path)) == f"path:{tmp_path}"
    assert model_source("models/a.gguf") == "gguf:models/a.gguf"
    assert model_source("builtin:tiny") == "builtin:tiny"


def test_untrained_models_get_both_rewards_by_the_text_alone(tmp_path: Path) -> None:
    """Words that the tiny tokenizer never encodes to fill a larger vocabulary, so texts differ."""
    tokenizer = tiny_tokenizer(1000)
    texts = [tokenizer.decode([21 + number, 3]) for number in range(500)]
    assert len({*texts}) == 500 and max(tokenizer.encode(texts[-1])) < 21
    rewards = [hash_is_even(text, "7") for text in texts]
    assert 0.4 < sum(rewards) / len(rewards) < 0.6 and rewards == [hash_is_even(text, "8") for text in texts]
    assert Workload(untrained=True, full_length=True).spec().reward.parts["benchmark_rewards:hashed"] == 1


def test_the_untrained_model_is_saved_once_and_leaves_no_folder_in_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Path] = []
    monkeypatch.setattr("harness.shelves.selftest.whole_cells.save_half_billion", saved.append)
    for folder, times in ((tmp_path / "new", 1), (tmp_path, 1)):
        given = parse(["--untrained", str(folder), "--device", "cuda"])
        monkeypatch.setattr(Path, "is_dir", lambda path: True)
        workload = workload_of(given)
        assert (workload.model, workload.untrained, len(saved)) == (f"path:{folder}", True, times)
        assert json.loads(json.dumps(settings_of(given)))["model"] == folder.name
    assert not workload_of(parse([])).untrained
