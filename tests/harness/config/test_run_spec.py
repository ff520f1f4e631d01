"""What the sections cannot know by themselves: refusals that name both knobs and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import RefusedError
from tests.frozen import frozen
from tests.harness.run.small import small_spec

CLASHES: list[dict[str, Any]] = [
    {"rollout.samples_per_prompt": 1},
    {"algorithm": "brpo", "rollout.samples_per_prompt": 1},
    {"algorithm": "reinforce", "objective.zero_std": "drop", "rollout.samples_per_prompt": 1},
    {"objective.credit": "steps", "objective.zero_std": "drop"},
    {"objective.critic.value_clip": "none", "algorithm": "ppo"},
    {"rollout.sampler": "initial"},
    {"rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 9}},
    {
        "rollout.prompts_per_step": 64,
        "objective.kl": {"where": "loss", "control": "adaptive", "horizon_sequences": 51},
    },
    {"objective.credit": "steps"},
    {"train.updates_per_rollout": 3},
    {"train.optimizer.type": "muon", "train.processes": 2, "train.sharding": "fully"},
    {"train.optimizer": "muon"},
    {"train.optimizer.type": "lion"},
    {"train.optimizer.momentum": 0.9},
    {"train.optimizer.beta2": 1.0},
    {"model.dtype": "float16"},
    {"budget.flops": 0},
]


def test_a_clash_of_sections_is_refused() -> None:
    told = ""
    for settings in CLASHES:
        with pytest.raises(RefusedError) as caught:
            small_spec(settings)
        told += f"{settings}\n    {caught.value}\n"
    frozen("config/sections", told)


@pytest.mark.parametrize(
    "settings",
    [
        {"train.optimizer.type": "muon", "train.sharding": "fully"},  # one process splits nothing
        {"train.optimizer.type": "sgd", "train.processes": 2, "train.sharding": "fully"},
        {"algorithm": "reinforce", "rollout.samples_per_prompt": 1},
        {"algorithm": "reinforce", "rollout.sampler": "initial"},
        {"rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 4}},
        {"objective.kl": {"where": "loss", "control": "adaptive", "horizon_sequences": 4}},
    ],
)
def test_what_does_not_clash_is_not(settings: dict[str, Any]) -> None:
    small_spec(settings)
