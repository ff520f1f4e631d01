"""The reward of a completion: a weighted sum of parts.

A part is a subclass of `RewardPart`, in `harness/rewards/parts/` or in a plug-in. It may also be a user's function
`(group: Sequence[Attempt], context: RewardContext) -> list[float]`, which `reward.parts` names as `module:function`.
"""

from harness.rewards.base import PARTS, Attempt, RewardContext, RewardPart
from harness.rewards.total import TotalReward

__all__ = ["PARTS", "Attempt", "RewardContext", "RewardPart", "TotalReward"]
