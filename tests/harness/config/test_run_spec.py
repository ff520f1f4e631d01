"""What the sections cannot know by themselves: refusals that name both knobs and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import RefusedError
from tests.harness.run.small import small_spec


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rollout.samples_per_prompt": 1}, "every advantage would be 0"),
        ({"algorithm": "brpo", "rollout.samples_per_prompt": 1}, "every advantage would be 0"),
        ({"algorithm": "reinforce", "objective.zero_std": "drop", "rollout.samples_per_prompt": 1}, "nothing would be"),
        ({"objective.credit": "steps", "objective.zero_std": "drop"}, "differ in their steps"),
        ({"objective.critic.value_clip": "none", "algorithm": "ppo"}, "write null for none"),
        ({"rollout.sampler": "initial"}, "did not draw these completions"),
        ({"rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 9}}, "the limit never rises"),
        (
            {
                "rollout.prompts_per_step": 64,
                "objective.kl": {"where": "loss", "control": "adaptive", "horizon_sequences": 51},
            },
            "horizon_sequences above 51.2",
        ),
        ({"objective.credit": "steps"}, "reward.parts.process"),
        ({"train.updates_per_rollout": 3}, "divisors of 4"),
        (
            {"train.optimizer.type": "muon", "train.processes": 2, "train.sharding": "fully"},
            r"train: optimizer\.type=muon with processes=2 and sharding=fully: .* Set sharding to rows",
        ),
        ({"train.optimizer": "muon"}, r"train\.optimizer is a section: set train\.optimizer\.type to one of adamw"),
        ({"train.optimizer.type": "lion"}, r"train\.optimizer\.type is .lion.: choose among .adamw., .sgd., .muon."),
        ({"train.optimizer.momentum": 0.9}, r"train\.optimizer\.momentum is not a key here"),
        ({"train.optimizer.beta2": 1.0}, r"train\.optimizer\.beta2 is 1\.0: input should be less than 1"),
        ({"model.dtype": "float16"}, r"model\.dtype: float16: small gradients .* rollout\.dtype may be float16"),
        ({"budget.flops": 0}, r"budget\.flops is 0: input should be greater than 0"),
    ],
)
def test_a_clash_of_sections_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        small_spec(settings)


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
