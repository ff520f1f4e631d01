"""The reward of a rollout batch: graded completions, the parts, their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.rewards.parts import PARTS, Attempt


@dataclass(frozen=True)
class Rewards:
    """One number a completion: the total, and each part before its weight."""

    total: list[float]
    parts: dict[str, list[float]]


def reward_attempts(attempts: Sequence[Attempt], weights: Mapping[str, float]) -> Rewards:
    """Weighted sum of the named parts for each attempt."""
    parts = {name: [PARTS[name](attempt) for attempt in attempts] for name in weights}
    total = [sum(weights[name] * values[row] for name, values in parts.items()) for row in range(len(attempts))]
    return Rewards(total, parts)
