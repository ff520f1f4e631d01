"""verl 0.9.1 itself, without an engine or a GPU: its configuration takes what the adapter writes, and its own functions
with these settings compute our objective. Needs an environment of its own: make test-verl."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import Objective, active_knobs, advantages, kl_penalties, preset, with_overrides
from algorithms.kl import KlInReward
from tests.algorithms.cases import value_and_gradient
from tests.algorithms.test_golden import GOLDEN, given, golden_batch
from tests.examples.adapters import EXAMPLES, load

pytest.importorskip("verl", reason="needs verl: make test-verl")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Hydra about OmegaConf, of verl that it will have no critic
TINY = EXAMPLES.parents[1] / "harness" / "models" / "tiny"
LIMIT_TOKENS: int = GOLDEN["inputs"]["max_completion_length"]
TOLERANCE = 1e-6
VERLS = ("reinforce_pp", "reinforce_pp_baseline", "rloo", "opo", "ppo", "gpg", "grpo", "dr_grpo", "gspo", "sapo")
OBJECTIVES: dict[str, dict[str, Any]] = {
    **{name: {} for name in VERLS},
    "dapo": {"zero_std": "keep"},
    **{name: {} for name in ("reinforce", "rft", "lite_ppo", "kimi_k1_5", "gmpo")},  # by bench's functions
}
"""Presets, each with what has to be changed so that verl can express it."""


def config_of(objective: Objective, output: Path) -> dict[str, Any]:
    """A program's config file, with one optimiser step on 2 prompts."""
    knobs = {f"objective.{name}": value for name, value in active_knobs(objective).items()} | {
        "rollout.sampler": "policy",
        "rollout.prompts_per_step": 2,
        "rollout.samples_per_prompt": 4,
        "rollout.max_completion_tokens": LIMIT_TOKENS,
        "rollout.temperature": 1.0,
        "task.train": "arithmetic",
        "train.learning_rate": 1e-6,
        "train.weight_decay": 0.0,
        "train.max_grad_norm": 1.0,
        "train.epochs": 1,
        "train.updates_per_rollout": 2 if objective.sequence_penalty else 1,
    }
    return {
        "knobs": json.loads(json.dumps(knobs)),
        "budget": {"steps": 3, "generated_tokens": None, "trained_tokens": None},
        "model": str(TINY),
        "output": str(output),
        "resume": str(output / "step-2"),
        "done": {"step": 2},
        "seed": 3,
        "checkpoint_every": 2,
        "evaluate_every": 0,
    }


class Composed:
    """What verl's loader makes of an objective's settings."""

    def __init__(self, name: str, output: Path, patch: pytest.MonkeyPatch) -> None:
        from hydra import compose, initialize_config_module
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import omega_conf_to_dataclass, validate_config

        train = load("verl")
        self.objective = with_overrides(preset(name, Objective), OBJECTIVES[name])
        self.settings = train.settings_of(config_of(self.objective, output), [{"prompt": "1 + 1", "tokens": [1, 2]}])
        words = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in self.settings.items()]
        with initialize_config_module("verl.trainer.config", version_base=None):
            self.config = compose("ppo_trainer", overrides=[*words, "trainer.n_gpus_per_node=1"])
        workers = self.config.ray_kwargs.ray_init.runtime_env.env_vars
        patch.setenv("BENCH_OBJECTIVE", workers.BENCH_OBJECTIVE)
        patch.syspath_prepend(workers.PYTHONPATH.split(os.pathsep)[0])
        sys.modules.pop("bench_in_verl", None)
        validate_config(self.config, need_reference_policy(self.config), need_critic(self.config))
        self.algorithm = omega_conf_to_dataclass(self.config.algorithm)
        self.actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.critic = omega_conf_to_dataclass(self.config.critic)
        self.rollout = omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout)
        # Also imports bench_in_verl, as verl's processes do, and reads the tokenizer.
        self.model = omega_conf_to_dataclass(self.config.actor_rollout_ref.model)


@pytest.fixture(params=OBJECTIVES, scope="module")
def composed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    with pytest.MonkeyPatch.context() as patch:
        yield Composed(request.param, tmp_path_factory.mktemp("a cell, its 'folder'"), patch)
    ADV_ESTIMATOR_REGISTRY.pop("bench", None)  # a second function of that name is refused
    POLICY_LOSS_REGISTRY.pop("bench", None)


def test_the_loader_takes_all_settings(composed: Composed) -> None:
    from omegaconf import OmegaConf

    for name, value in composed.settings.items():
        found = OmegaConf.select(composed.config, name.removeprefix("+"))
        assert (OmegaConf.to_object(found) if OmegaConf.is_config(found) else found) == (
            LIMIT_TOKENS if value == "${data.max_response_length}" else value
        ), name
    assert composed.actor.loss_agg_mode == composed.settings["actor_rollout_ref.actor.loss_agg_mode"]
    assert composed.model.tokenizer.chat_template == composed.settings["actor_rollout_ref.model.custom_chat_template"]


def test_advantages_and_loss_are_the_objective(composed: Composed) -> None:
    """The gradient, too, and with verl's part of a batch in one micro-batch and in two."""
    found = verls_advantages(composed)
    expected = our_advantages(composed.objective)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    whole = golden_batch(advantages=expected)
    value, gradient = value_and_gradient(composed.objective, whole)
    for cut in (0, 3):
        logp = given("logp").requires_grad_()
        parts = [
            verls_loss(composed, logp, expected, rows) for rows in (slice(cut), slice(cut, None)) if rows.stop != 0
        ]
        (found_gradient,) = torch.autograd.grad(torch.stack(parts).sum(), logp)
        assert sum(part.item() for part in parts) == pytest.approx(value.item(), abs=TOLERANCE)
        torch.testing.assert_close(found_gradient, gradient, rtol=0, atol=TOLERANCE)


def scores() -> Tensor:
    """[B, T] the reward at the last token of each completion."""
    mask = given("mask")
    last = mask * (mask.flip(1).cumsum(1).flip(1) == 1)
    return last * given("rewards")[:, None]


def verls_advantages(composed: Composed) -> Tensor:
    import numpy
    from verl import DataProto
    from verl.trainer.ppo.core_algos import get_kl_controller
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage

    tensors = {"response_mask": given("mask"), "token_level_scores": scores(), "token_level_rewards": scores()}
    tensors |= {"old_log_probs": given("old_logp"), "ref_log_prob": given("ref_logp"), "values": values()}
    data = DataProto.from_dict(tensors, {"uid": numpy.array(GOLDEN["inputs"]["uid"], dtype=object)})
    algorithm = composed.algorithm
    if algorithm.use_kl_in_reward:
        data, _ = apply_kl_penalty(data, get_kl_controller(algorithm.kl_ctrl), algorithm.kl_penalty)
    data = compute_advantage(
        data,
        algorithm.adv_estimator,
        algorithm.gamma,
        algorithm.lam,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    )
    found: Tensor = data.batch["advantages"] * given("mask")
    return found


def values() -> Tensor:
    return 0.3 * given("old_logp") * given("mask")


def our_advantages(objective: Objective) -> Tensor:
    groups, mask = torch.tensor([ord(uid) for uid in GOLDEN["inputs"]["uid"]]), given("mask")
    penalties = None
    if isinstance(objective.kl, KlInReward):
        penalties = kl_penalties(objective.kl, given("old_logp"), given("ref_logp"), objective.kl.beta, mask)
    return advantages(objective, given("rewards"), groups, mask, values=values(), token_rewards=penalties)


def verls_loss(composed: Composed, logp: Tensor, token_advantages: Tensor, rows: slice) -> Tensor:
    """As verl.workers.utils.losses.ppo_loss puts it together, for some rows of an optimiser step."""
    from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty

    actor, mask = composed.actor, given("mask")
    actor.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=int(mask.sum()),
        global_batch_size=len(mask),
        loss_scale_factor=actor.loss_scale_factor,
    )
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=given("old_logp")[rows],
        log_prob=logp[rows],
        advantages=token_advantages[rows],
        response_mask=mask[rows].bool(),
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
        rollout_is_weights=None,
    )
    if actor.use_kl_loss:
        estimates = kl_penalty(logp[rows], given("ref_logp")[rows], actor.kl_loss_type)
        share = agg_loss(estimates, mask[rows].bool(), actor.loss_agg_mode, **actor.global_batch_info)
        loss = loss + actor.kl_loss_coef * share
    bonus = agg_loss(-given("old_logp")[rows], mask[rows].bool(), actor.loss_agg_mode, **actor.global_batch_info)
    total: Tensor = loss - actor.entropy_coeff * bonus
    return total


def test_prompts_and_rewards_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl keeps the order of the prompts, encodes them as the evaluation does, and asks our grader."""
    import asyncio

    import verl.trainer.ppo.core_algos as registries
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler

    monkeypatch.setattr(registries, "ADV_ESTIMATOR_REGISTRY", {})
    monkeypatch.setattr(registries, "POLICY_LOSS_REGISTRY", {})
    composed = Composed("dapo", tmp_path, monkeypatch)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    prompts = {"12+34=": "46", "5+6=": "11", "99+1=": "100"}
    rows = [
        {"problem_id": prompt, "prompt": prompt, "tokens": tokenizer(prompt)["input_ids"], "answer": answer}
        for prompt, answer in prompts.items()
    ]
    config = config_of(composed.objective, tmp_path)
    load("verl").write_data(config, rows, composed.settings["actor_rollout_ref.model.custom_chat_template"])
    data = create_rl_dataset(composed.config.data.train_files, composed.config.data, composed.model.tokenizer, None)
    drawn = [data[place] for place in create_rl_sampler(composed.config.data, data)]
    encoded = [
        composed.model.tokenizer.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, return_dict=False)
        for row in drawn
    ]
    assert encoded == [row["tokens"] for row in rows]
    faulty = [rows[0] | {"tokens": [*rows[0]["tokens"], 1]}]
    with pytest.raises(SystemExit, match="verl encodes the prompt of "):
        load("verl").write_data(config, faulty, composed.settings["actor_rollout_ref.model.custom_chat_template"])

    async def earned(texts: tuple[str, ...]) -> list[float]:
        manager, rewards = load_reward_manager(composed.config, composed.model.tokenizer), []
        for text in texts:
            ids = torch.tensor([composed.model.tokenizer(text, add_special_tokens=False)["input_ids"]])
            tensors = {"responses": ids, "attention_mask": torch.ones_like(ids)}
            known = {name: [drawn[1][name]] for name in ("data_source", "reward_model")}
            rewards.append(float((await manager.run_single(DataProto.from_dict(tensors, known)))["reward_score"]))
        return rewards

    # At the limit the soft punishment of overlong completions is 1.
    assert asyncio.run(earned(("#11", "#12", "1" * LIMIT_TOKENS))) == pytest.approx([1.0, 0.0, -1.0])
