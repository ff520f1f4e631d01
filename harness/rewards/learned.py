"""Reward that was learned from pairs: a proxy of the verdict, which is logged beside it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.rewards.attempt import Attempt, RewardContext


def reward_model(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """The reward model's score, in standard deviations of what the starting weights get."""
    return [attempt.reward_model_score for attempt in group]
