"""Resuming exactly, whatever a run carries from step to step besides weights and optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.training.checkpoint import load_latest
from tests.harness.run.small import trained, trained_and_killed

pytestmark = pytest.mark.slow

LORA: dict[str, Any] = {"model.lora.type": "lora", "model.lora.rank": 4}
STATEFUL: dict[str, dict[str, Any]] = {
    "critic of its own and prioritised prompts": {"algorithm": "ppo", "task.order": "prioritised", "task.pool": 24},
    "critic on a shared trunk and retired prompts": {
        "algorithm": "ppo",
        "objective.critic.trunk": "shared",
        "task.retire_at": 0.25,
        "task.pool": 12,
    },
    "refreshed reference and staged context": {
        "objective.kl.where": "loss",
        "objective.kl.reference": "refreshed",
        "objective.kl.refresh_every_steps": 1,
        "objective.kl.beta": 0.5,
        "rollout.staged.type": "converged",
        "rollout.staged.first_tokens": 16,
        "rollout.staged.window_steps": 1,
        "rollout.staged.min_gain": 10.0,
    },
    "adaptive coefficients and refilled batches": {
        "objective.kl.where": "reward",
        "objective.kl.control": "adaptive",
        "objective.entropy.adaptive.type": "step_both_ways",
        "objective.entropy.adaptive.target_nats": 2.0,
        "objective.entropy.adaptive.delta": 0.1,
        "objective.zero_std": "refill",
    },
    "offline samples and muon": {
        "algorithm": "reinforce",
        "rollout.sampler": "initial",
        "train.optimizer.type": "muon",
        "train.weight_decay": 0.1,
        "budget.flops": 1e15,
    },
    "pairs of the policy and momentum alone": {
        "algorithm": "dpo",
        "pairs.pairing": "all",
        "train.optimizer.type": "sgd",
        "train.learning_rate": 1.0,
    },
    "pairs and reference of a round": {
        "algorithm": "dpo",
        "objective.reference": "round_start",
        "rollout.sampler": "round",
        "rollout.round_steps": 3,
    },
    "likelihoods of gold answers": {"reward.parts": {"vr_cli": 1.0, "jepo": 1.0, "random": 1.0}},
    "completions of policy and teacher": {
        "algorithm": "gkd",
        "teacher.template": "solution_shown",
        "rollout.sampler": "teacher",
        "rollout.policy_frac": 0.67,
        "budget.teacher_tokens": 10_000,
    },
    "weights of earlier steps": {
        "rollout.staleness_steps": 2,
        "objective.sampler_correction.type": "token_unbounded",
        "train.updates_per_rollout": 3,
    },
    "completions under way": {
        "train.learning_rate": 3e-4,  # at a higher one they soon end within a slice
        "rollout.partial": {"type": "slices", "slice_tokens": 8},
        "rollout.staleness_steps": 1,
        "objective.sampler_correction.type": "in_ratio",
    },
    "pairs of old weights": {"algorithm": "dpo", "pairs.pairing": "all", "rollout.staleness_steps": 1},
    "narrow layers and rollouts": {
        "model.dtype": "bfloat16",
        "model.head_dtype": "float32",
        "rollout.dtype": "float16",
    },
    "expert iteration": {"algorithm": "rft", "rollout.sampler": "round", "rollout.round_steps": 3},
    "adapters in bfloat16 with a critic": LORA | {"algorithm": "ppo", "model.dtype": "bfloat16"},
    "adapters with a reference": LORA
    | {"objective.kl.where": "loss", "objective.kl.beta": 0.1, "train.activation_checkpointing": True},
}
# Killed in the middle of the second of two rounds: its start is neither the starting policy nor the checkpoint's.
COMMON: dict[str, Any] = {
    **{"train.steps": 6, "train.checkpoint_every": 4, "train.learning_rate": 3e-3, "rollout.prompts_per_step": 3},
    **{"eval.every": 0, "eval.problems": 2, "eval.samples": 1},
}


@pytest.mark.parametrize("name", STATEFUL)
def test_resumed_is_as_unbroken(name: str, tmp_path: Path) -> None:
    settings = COMMON | STATEFUL[name]
    unbroken, killed = trained_and_killed(tmp_path, settings, before_step=6)
    resumed = trained(killed.path, settings)
    assert [start["from_step"] for start in resumed.read_starts()] == [0, 4]
    assert resumed.read_steps() == unbroken.read_steps()
    assert resumed.read_status()["digest"] == unbroken.read_status()["digest"]


def test_the_order_of_prompts_learns_from_every_attempt(tmp_path: Path) -> None:
    cell = trained(tmp_path, COMMON | {"task.order": "prioritised", "task.pool": 24})
    last = load_latest(cell.checkpoints)
    assert last is not None
    assert sum(last.progress["order"]["visits"].values()) == 6 * 3
    earned = sum(row["reward/correct"] for row in cell.read_steps())
    assert sum(last.progress["order"]["successes"].values()) == pytest.approx(3 * earned)
