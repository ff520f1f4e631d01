"""Reward for the steps of the work, as one number a completion or at the token where each step ends."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evals.tasks.base import Step
from harness.rewards.attempt import Attempt, RewardContext

if TYPE_CHECKING:
    from torch import Tensor


def process(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """Share of the written steps that are right; 0 where none is written."""
    written = [_steps(attempt, context) for attempt in group]
    return [sum(step.right for step in steps) / len(steps) if steps else 0.0 for steps in written]


def step_rewards(
    attempts: Sequence[Attempt], context: RewardContext, tokens: Tensor, decode: Callable[[Sequence[int]], str]
) -> Tensor:
    """Rewards at tokens [N, T]: where a step ends, the weight of `process` if it is right, else 0; NaN where none ends.

    tokens [N, T]: the completions of the N attempts, right-padded.
    """
    import torch

    rewards = torch.full(tokens.shape, torch.nan)
    for row, attempt in enumerate(attempts):
        completion = tokens[row, : attempt.n_tokens].tolist()
        for step in _steps(attempt, context):
            rewards[row, token_at(step.end, completion, decode)] = context.options.parts["process"] * step.right
    return rewards


def token_at(end: int, completion: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Position of the token with which the first `end` characters of the completion's text are complete."""
    return bisect.bisect_left(range(len(completion)), end, key=lambda token: len(decode(completion[: token + 1])))


def _steps(attempt: Attempt, context: RewardContext) -> Sequence[Step]:
    """Raises ValueError for a task without steps, which the spec refuses."""
    if context.task.written_steps is None:
        raise ValueError(f"the task {context.task.name} does not say what a step is")
    return context.task.written_steps(attempt.problem, attempt.text)
