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
    ],
)
def test_a_clash_of_sections_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        small_spec(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "reinforce", "rollout.samples_per_prompt": 1},
        {"algorithm": "reinforce", "rollout.sampler": "initial"},
        {"rollout.staged": {"type": "at_step", "first_tokens": 8, "step": 4}},
        {"objective.kl": {"where": "loss", "control": "adaptive", "horizon_sequences": 4}},
    ],
)
def test_what_does_not_clash_is_not(settings: dict[str, Any]) -> None:
    small_spec(settings)
