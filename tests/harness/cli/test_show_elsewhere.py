"""`bench show --as` and `--from`: what people and programs are told, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from algorithms import active_knobs, preset
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.test_docs import PAGES, ROOT, blocks

DAPO_SCRIPT = """#!/usr/bin/env bash
set -xeuo pipefail
clip_ratio_high=0.28
mode='token-mean'  # it's the batch's tokens
ALGORITHM=(
    algorithm.adv_estimator=${ESTIMATOR:-grpo}
    algorithm.use_kl_in_reward=False
)
python3 -m verl.trainer.main_ppo --config-name=ppo_trainer "${ALGORITHM[@]}" \\
    actor_rollout_ref.actor.clip_ratio_high=${clip_ratio_high} \\
    actor_rollout_ref.actor.loss_agg_mode=$mode +algorithm.filter_groups.enable=True \\
    trainer.logger='["console","wandb"]' actor_rollout_ref.rollout.n=16 $@
"""
OPENRLHF_SCRIPT = """ray job submit --address=x -- python3 -m openrlhf.cli.train_ppo_ray \\
    --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.init_coef 1e-3 --algo.kl.estimator k3 \\
    --actor.eps_clip_low_high 0.2 0.28 --ds.zero_stage 3
"""


def test_an_algorithm_in_the_settings_of_a_trainer(bench: Bench) -> None:
    frozen("cli/show_as", bench("show", "dapo", "--as", "trl", "--set", "objective.rule.clip_high=0.3").out)


def test_the_same_for_programs(bench: Bench) -> None:
    document = bench("show", "opo", "--as", "verl", "--json").document
    assert (document["verdict"], document["differs"], document["beyond_the_knobs"]) == ("the same", {}, {})
    assert document["settings"]["algorithm.adv_estimator"] == "opo"
    differs = bench("show", "ace_reason", "--as", "trl", "--json").document
    assert differs["differs"]["objective.rule.type"] == {"here": "policy_gradient", "there": "weighted"}
    assert {"objective.rule.type", "objective.ratio"} >= set(differs["cannot_act_in_one_step"])
    assert differs["verdict"] == "the same with one optimiser step per rollout"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "name", "text", "knobs", "run"),
    [
        ("trl", "a.yaml", "loss_type: grpo\nlearning_rate: 2e-6\nmodel_init_kwargs: {dtype: bfloat16}\n",
         {"aggregation": "seq_mean_token_mean"}, {"train.learning_rate": 2e-6}),
        ("trl", "a.json", '{"loss_type": "dr_grpo", "scale_rewards": false, "num_generations": 4}',
         {"aggregation": "constant_length", "scale": "none"}, {"rollout.samples_per_prompt": 4}),
        ("trl:rlooconfig", "a.yaml", "beta: 0.0\n", {"baseline": "leave_one_out", "kl.where": "none"}, {}),
        ("verl", "dapo.sh", DAPO_SCRIPT, {"baseline": "group_mean", "rule.clip_high": 0.28, "zero_std": "refill"},
         {"rollout.samples_per_prompt": 16}),
        ("verl", "overrides.yaml", "- algorithm.adv_estimator=rloo\n- trainer.nnodes=1\n",
         {"baseline": "leave_one_out", "aggregation": "token_mean"}, {}),
        ("verl", "config.yaml", "algorithm: {adv_estimator: grpo, norm_adv_by_std_in_grpo: false}\n",
         {"scale": "none"}, {}),
        ("openrlhf", "run.sh", OPENRLHF_SCRIPT,
         {"kl.where": "loss", "kl.estimator": "k3", "kl.beta": 1e-3, "rule.clip_high": 0.28}, {}),
        ("prime-rl", "rl.toml", "[orchestrator]\ngroup_size = 16\n[trainer.loss]\nkl_tau = 0.0\n",
         {"rule.type": "weighted", "sampler_correction.type": "in_ratio"}, {"rollout.samples_per_prompt": 16}),
    ],
)  # fmt: skip
def test_what_a_file_of_settings_computes(
    bench: Bench, tmp_path: Path, dialect: str, name: str, text: str, knobs: dict[str, Any], run: dict[str, Any]
) -> None:
    (tmp_path / name).write_text(text)
    result = bench("show", "--from", dialect, str(tmp_path / name), "--json")
    assert {knob: result.document["knobs"][knob] for knob in knobs} == knobs
    assert result.document["run"] == run
    out = bench("show", "--from", dialect, str(tmp_path / name)).out
    # The command that is offered leads to the same knobs.
    words = next(line for line in out.splitlines() if line.startswith("the same here: ")).split()[4:]
    assert bench("show", *words[1:], "--json").document["knobs"] == result.document["knobs"]


def test_the_page_on_names_shows_what_is_printed(bench: Bench, tmp_path: Path) -> None:
    page = PAGES[ROOT / "docs/reference/elsewhere.md"]
    (settings,) = blocks(page, "yaml")
    (shown,) = blocks(page, "text")
    (tmp_path / "a.yaml").write_text(settings)
    assert shown in bench("show", "--from", "trl", str(tmp_path / "a.yaml")).out


def test_settings_that_are_an_algorithm_as_it_is(bench: Bench, tmp_path: Path) -> None:
    settings = bench("show", "reinforce_pp", "--as", "verl", "--json").document["settings"]
    (tmp_path / "a.json").write_text(json.dumps(settings))
    result = bench("show", "--from", "verl", str(tmp_path / "a.json"))
    frozen("cli/show_from", result.out.replace(f"{tmp_path}/", ""))
    document = bench("show", "--from", "verl", str(tmp_path / "a.json"), "--json").document
    assert document["knobs"] == active_knobs(preset("reinforce_pp"))


@pytest.mark.parametrize(
    ("words", "text", "code", "fields"),
    [
        (["dapo", "--as", "tlr"], None, "bench.unknown_name", {"noun": "dialect"}),
        (["dapoo", "--as", "trl"], None, "bench.unknown_name", {}),
        (["dpo", "--as", "verl"], None, "algorithms.no_trainer_for_feedback", {}),
        (["grpo", "--as", "trl", "--from", "trl"], None, "cli.as_and_from_together", {}),
        (["grpo", "--as", "trl", "--set", "train.steps=3"], None, "cli.not_an_objective_knob", {}),
        (["FILE", "--from", "trl", "--set", "epsilon=1"], "beta: 0.1", "cli.set_with_from", {}),
        (["nowhere.yaml", "--from", "trl"], None, "cli.settings_file_missing", {"path": "nowhere.yaml"}),
        (["FILE", "--from", "trl"], "", "cli.file_without_settings", {}),
        (["FILE", "--from", "trl"], "[1, 2]", "cli.file_without_settings", {}),
        (["FILE", "--from", "trl"], "beta: [", "evals.invalid_yaml", {}),
        (["FILE", "--from", "trl:PPOConfig"], "beta: 0.1", "bench.unknown_name", {"name": "'PPOConfig'"}),
        (["FILE", "--from", "trl"], "epsilon_hihg: 0.3", "", {}),
        (["FILE", "--from", "trl"], "entropy_coef: -1.0", "algorithms.settings_without_objective", {}),
        (
            ["FILE", "--from", "verl"],
            "algorithm: {adv_estimator: grpoo}",
            "algorithms.value_not_taken",
            {"value": "'grpoo'"},
        ),
    ],
)
def test_what_is_refused(
    bench: Bench, tmp_path: Path, words: list[str], text: str | None, code: str, fields: dict[str, str]
) -> None:
    file = tmp_path / "a.yaml"
    if text is not None:
        file.write_text(text)
    bench("show", *(str(file) if word == "FILE" else word for word in words)).refused(code, **fields)


def test_a_variable_that_a_script_does_not_set(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(DAPO_SCRIPT.replace("clip_ratio_high=0.28\n", ""))
    result = bench("show", "--from", "verl", str(script))
    assert result.code == 2 and "'${clip_ratio_high}'" in result.err
    script.write_text("python3 -m verl.trainer.main_ppo 'algorithm.adv_estimator=grpo\n")
    bench("show", "--from", "verl", str(script)).refused("cli.unreadable_shell_script")
