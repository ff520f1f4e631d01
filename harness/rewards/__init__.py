"""Reward parts and their weighted sum.

A part of one's own is a function `(group: Sequence[Attempt], context: RewardContext) -> list[float]`, named by
`module:function` under `reward.parts`.
"""

from harness.rewards.attempt import Attempt, RewardContext, RewardPart
from harness.rewards.parts import PARTS
from harness.rewards.steps import step_rewards
from harness.rewards.total import Rewards, reward_groups
from harness.rewards.verdicts import graded

__all__ = ["PARTS", "Attempt", "RewardContext", "RewardPart", "Rewards", "graded", "reward_groups", "step_rewards"]
