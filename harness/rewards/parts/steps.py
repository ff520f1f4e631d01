"""Reward for the intermediate steps of a solution."""

from __future__ import annotations

from collections.abc import Sequence

from evals.tasks.base import Step
from harness.errors import InvalidError
from harness.rewards import Attempt, RewardContext, RewardPart


class Process(RewardPart):
    """Fraction of the written steps that are right; 0 if no step is written.

    With `objective.credit=steps`, each right step earns the part's weight at the token where it ends, and the part is
    not in the sum.
    """

    name = "process"
    rewards_steps = True

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        written = [_steps(attempt, context) for attempt in group]
        return [sum(step.right for step in steps) / len(steps) if steps else 0.0 for steps in written]

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        # With step credit, the part rewards through `step_rewards`, so in the sum it would count twice.
        return 0.0 if context.credit == "steps" and given is not None else given

    def step_rewards(self, attempt: Attempt, context: RewardContext) -> list[tuple[int, float]]:
        return [(step.end, float(step.right)) for step in _steps(attempt, context)]


def _steps(attempt: Attempt, context: RewardContext) -> Sequence[Step]:
    """Return the steps written in a completion.

    Raises ValueError if the task has no steps. (The spec's validation already refuses such a task.)
    """
    if context.task.written_steps is None:
        raise InvalidError("rewards.task_without_steps", task=context.task.name)
    return context.task.written_steps(attempt.problem, attempt.text)
