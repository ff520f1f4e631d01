"""The reward where completions cannot end: what follows the answer does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.rewards import Attempt, RewardContext


def starts_with_answer(text: str, answer: str) -> float:
    """1 if the answer stands right behind the first `#`, else 0."""
    return float(text.partition("#")[2].startswith(answer))


def answered_first(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """As a reward part of the product: `full_length_reward:answered_first`."""
    return [starts_with_answer(attempt.text, attempt.problem.answer) for attempt in group]
