"""Reward parts and their weighted sum."""

from harness.rewards.parts import PARTS, Attempt, RewardPart
from harness.rewards.total import Rewards, reward_attempts

__all__ = ["PARTS", "Attempt", "RewardPart", "Rewards", "reward_attempts"]
