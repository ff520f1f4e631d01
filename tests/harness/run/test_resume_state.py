"""Resuming exactly, whatever a run carries from step to step besides weights and optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.records import CellRecord
from harness.run import cell as cell_module
from harness.training.checkpoint import load_latest
from tests.harness.run.small import run_cell, small_spec

pytestmark = pytest.mark.slow

STATEFUL: dict[str, dict[str, Any]] = {
    "critic of its own": {"algorithm": "ppo"},
    "critic on a shared trunk": {"algorithm": "ppo", "objective.critic.trunk": "shared"},
    "refreshed reference": {
        "objective.kl.where": "loss",
        "objective.kl.reference": "refreshed",
        "objective.kl.refresh_every_steps": 1,
        "objective.kl.beta": 0.5,
    },
    "adaptive coefficients": {
        "objective.kl.where": "reward",
        "objective.kl.control": "adaptive",
        "objective.entropy.adaptive.type": "step_both_ways",
        "objective.entropy.adaptive.target_nats": 2.0,
        "objective.entropy.adaptive.delta": 0.1,
    },
    "prioritised prompts": {"task.order": "prioritised", "task.pool": 24},
    "retired prompts": {"task.retire_at": 0.25, "task.pool": 12},
    "staged context": {
        "rollout.staged.type": "converged",
        "rollout.staged.first_tokens": 16,
        "rollout.staged.window_steps": 1,
        "rollout.staged.min_gain": 10.0,
    },
    "refilled batches": {"objective.zero_std": "refill"},
    "offline samples": {"algorithm": "reinforce", "rollout.sampler": "initial"},
    "pairs of the policy": {"algorithm": "dpo", "pairs.pairing": "all"},
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
    "muon": {"train.optimizer.type": "muon", "train.weight_decay": 0.1, "budget.flops": 1e15},
    "momentum alone": {"train.optimizer.type": "sgd", "train.learning_rate": 1.0},
    "narrow layers and rollouts": {
        "model.dtype": "bfloat16",
        "model.head_dtype": "float32",
        "rollout.dtype": "float16",
    },
    "expert iteration": {"algorithm": "rft", "rollout.sampler": "round", "rollout.round_steps": 3},
}


class Killed(BaseException):
    pass


def settings(name: str) -> dict[str, Any]:
    # Killed in the middle of the second of two rounds: its start is neither the starting policy nor the checkpoint's.
    common = {"train.steps": 6, "train.checkpoint_every": 4, "train.learning_rate": 3e-3, "eval.every": 0}
    return {**common, "eval.problems": 2, "eval.samples": 1, "rollout.prompts_per_step": 3, **STATEFUL[name]}


def run(folder: Path, name: str) -> CellRecord:
    folder.mkdir(exist_ok=True)
    cell = CellRecord(folder, "arm", 0, "0")
    run_cell(cell, small_spec(settings(name)))
    return cell


@pytest.mark.parametrize("name", STATEFUL)
def test_resumed_is_as_unbroken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken = run(tmp_path / "unbroken", name)
    real = cell_module.CellRun._train_step

    def killed_in_step_6(self: Any) -> None:
        if self._step == 5:
            raise Killed
        real(self)

    with monkeypatch.context() as patched:
        patched.setattr(cell_module.CellRun, "_train_step", killed_in_step_6)
        with pytest.raises(Killed):
            run(tmp_path / "killed", name)
    resumed = run(tmp_path / "killed", name)
    assert "resumed at step 4" in resumed.log.read_text()
    assert resumed.read_steps() == unbroken.read_steps()
    assert resumed.read_status()["digest"] == unbroken.read_status()["digest"]


def test_the_order_of_prompts_learns_from_every_attempt(tmp_path: Path) -> None:
    cell = run(tmp_path / "cell", "prioritised prompts")
    last = load_latest(cell.checkpoints)
    assert last is not None
    assert sum(last.progress["order"]["visits"].values()) == 6 * 3
    earned = sum(row["reward/correct"] for row in cell.read_steps())
    assert sum(last.progress["order"]["successes"].values()) == pytest.approx(3 * earned)
