"""A reward of one-token completions whose expectation, and so whose gradient, is a finite sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evals.tasks.base import Problem
from harness.rewards import Attempt, RewardContext


def earns(problem: Problem, text: str) -> float:
    """Long sums pay little, and for something else than short ones."""
    assert problem.difficulty is not None
    return float(text == "#") if problem.difficulty < 5 else 0.3 * (text == "1")


def first_token(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    return [earns(attempt.problem, attempt.text) for attempt in group]


def unscorable(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    return [math.nan] * len(group)
