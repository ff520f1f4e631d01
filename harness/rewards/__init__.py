"""The reward of a completion: a weighted sum of parts.

A part is a subclass of `RewardPart`, in `harness/rewards/parts/` or in a plug-in. Or it is a function of the user's
own, which `reward.parts` names by `module:function`: `(group: Sequence[Attempt], context: RewardContext) ->
list[float]`.
"""

from harness.rewards.base import PARTS, Attempt, RewardContext, RewardPart
from harness.rewards.total import TotalReward

__all__ = ["PARTS", "Attempt", "RewardContext", "RewardPart", "TotalReward"]
