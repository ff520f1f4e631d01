"""Rewards where the task's own says nothing: where completions cannot end, and where the model is untrained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.rewards import Attempt, RewardContext


def starts_with_answer(text: str, answer: str) -> float:
    """1 if the answer stands right behind the first `#`, else 0: what follows does not matter."""
    return float(text.partition("#")[2].startswith(answer))


def hash_is_even(text: str, answer: str) -> float:
    """1 for half of all texts, by their hash, whatever the answer: an untrained model gets both."""
    return float(blake2b(text.encode()).digest()[0] % 2 == 0)


def _part(score: Callable[[str, str], float], group: Sequence[Attempt]) -> list[float]:
    return [score(attempt.text, attempt.problem.answer) for attempt in group]


def answered_first(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """`starts_with_answer` as a reward part of the product: `benchmark_rewards:answered_first`."""
    return _part(starts_with_answer, group)


def hashed(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """`hash_is_even` as a reward part of the product: `benchmark_rewards:hashed`."""
    return _part(hash_is_even, group)
