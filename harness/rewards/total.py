"""The reward of a rollout batch: the parts of every group, and their weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.rewards.attempt import Attempt, RewardContext
from harness.rewards.parts import find_part

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rewards:
    """One number a completion: the total, NaN for one that cannot be scored, and each part before its weight.

    token_rewards [N, T]: rewards of steps at the tokens where they end, NaN at other tokens; not in the total. None
    unless objective.credit is `steps`.
    """

    total: list[float]
    parts: dict[str, list[float]]
    token_rewards: Tensor | None = None


def reward_groups(groups: Sequence[Sequence[Attempt]], context: RewardContext) -> Rewards:
    """Weighted sum of the parts for each attempt, group after group. Parts of weight 0 are measured but cannot make an
    attempt unscorable.

    Raises RefusedError if a part of the user's own cannot be imported or gives something else than its numbers.
    """
    weights = _weights(context)
    parts = {}
    for name in weights:
        part = find_part(name)
        parts[name] = [value for group in groups for value in part(group, context)]
    weighted = [(weight, parts[name]) for name, weight in weights.items() if weight]
    rows = range(sum(map(len, groups)))
    return Rewards([sum((weight * values[row] for weight, values in weighted), 0.0) for row in rows], parts)


def _weights(context: RewardContext) -> dict[str, float]:
    """Every part to be measured with its weight in the total."""
    weights = dict(context.options.parts)
    if context.options.noise.acts:
        # The true reward is logged beside the one that training sees.
        weights |= {"correct": 0.0, "proxy_correct": weights["correct"]}
    if context.credit == "steps":
        weights["process"] = 0.0
    overlong = context.overlong
    if overlong.type == "soft" or (overlong.type == "penalise" and overlong.penalty):
        weights["overlong"] = 1.0
    return weights
