"""Updates in two gloo processes: for comparison with one."""

from __future__ import annotations

import copy
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.config.model import Lora
from harness.config.run_spec import RunSpec
from harness.models.lora import add_adapters, reset_adapters
from harness.models.precision import set_head_dtype
from harness.processes import Processes, by_all
from harness.training.optimizer import DivergedError
from harness.training.policy_update import PolicyUpdate
from harness.training.preference_update import PreferenceUpdate
from harness.training.reference import frozen_copy
from harness.training.split import gather_into, scatter_into, whole
from harness.training.tensors import with_tensors
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.pair_batches import pair_batch

Settings = dict[str, Any]

COMMON: Settings = {
    "train.max_grad_norm": 0.5,
    "train.learning_rate": 3e-4,
    "train.updates_per_rollout": 2,
    "train.micro_batch_tokens": 64,
}
# With a teacher some gradients are no larger than rounding. Adam's usual eps of 1e-8 would turn these into whole steps,
# so that rounding alone decided how far two processes end from one: 1.2e-5 on one make of processor, less on another.
VARIANTS: dict[str, Settings] = {
    "grpo": {},
    "one update": {"train.updates_per_rollout": 1, "train.weight_decay": 0.1},
    "ppo": {"algorithm": "ppo", "objective.critic.trunk": "own"},
    "kl in the loss": {"algorithm": "grpo", "objective.kl.where": "loss", "objective.kl.beta": 0.5},
    "dpo": {"algorithm": "dpo"},
    "a teacher in the loss": {"algorithm": "gkd", "train.optimizer.eps": 1e-5},
    "a teacher in the reward": {"algorithm": "opd", "train.optimizer.eps": 1e-5},
    "an environment": {"task.train": "guess"},
    "lora": {"model.lora.type": "lora", "model.lora.rank": 4, "train.learning_rate": 1e-3},
    "sgd": {"train.optimizer.type": "sgd", "train.learning_rate": 0.1},
    "muon": {"train.optimizer.type": "muon"},
    "a float32 head": {"model.head_dtype": "float32"},
}
ROWS_ONLY = {"muon"}
"""Variants that take no split weights."""


@dataclass
class Trained:
    """A policy with its update, in each process."""

    spec: RunSpec

    def __post_init__(self) -> None:
        self.model = rollouts.model()
        set_head_dtype(self.model, self.spec.model.head_dtype)
        if isinstance(self.spec.model.lora, Lora):
            self.model = add_adapters(self.model, self.spec.model.lora)
            reset_adapters(self.model, seed=0)
        self.policy = self.model
        if self.spec.train.sharding == "fully":
            self.policy = copy.deepcopy(self.model)
        initial = frozen_copy(self.model)
        teacher = frozen_copy(self.model)
        with torch.no_grad():
            for weight in teacher.parameters():
                weight.neg_()
        self.batch = rollouts.rollout(self.model)
        if self.spec.environment is not None:
            self.batch = replace(self.batch, sequences=rollouts.interrupted(self.batch.sequences))
        self.update: Any = (
            PreferenceUpdate(self.model, self.spec, rollouts.PAD, initial, initial)
            if self.spec.pairs.type != "none"
            else PolicyUpdate(self.model, self.spec, rollouts.PAD, initial, teacher)
        )
        Processes.here().share(self)

    def run(self, steps: range) -> dict[str, Any]:
        """The metrics of the last of these batches."""
        for step in steps:
            batch = pair_batch() if isinstance(self.update, PreferenceUpdate) else self.batch
            report = self.update.run(batch, step)
        metrics: dict[str, Any] = report.metrics
        return metrics

    @by_all
    def weights(self) -> dict[str, Tensor]:
        if Processes.here().split:
            gather_into(self.policy, self.model)
        return {name: weight.clone() for name, weight in self.policy.state_dict().items()}

    @by_all
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = with_tensors(self.update.state_dict(), whole)
        return state

    @by_all
    def restore(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.policy.load_state_dict(weights)
        if Processes.here().split:
            scatter_into(self.model, self.policy)
        self.update.load_state_dict(state)


def spec_of(variant: str, **train: Any) -> RunSpec:
    return small_spec(COMMON | VARIANTS[variant] | {f"train.{name}": value for name, value in train.items()})


def in_two(rank: int, port: int, work: Any, folder: Path) -> None:
    """For torch.multiprocessing.spawn: work(folder) in the first of two processes, which the other serves."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    Processes.join()
    work(folder)
    torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def run_here(trained: Trained, steps: range) -> dict[str, Any]:
    """Run where this is the first process, else serve it. {} in the others."""
    processes = Processes.here()
    if not processes.is_first:
        processes.serve(DivergedError)
        return {}
    metrics = trained.run(steps)
    result = {"metrics": metrics, "weights": trained.weights(), "state": trained.state()}
    processes.dismiss()
    return result
