"""Reward for the turns of a completion, given by the task's environment."""

from __future__ import annotations

from collections.abc import Sequence

from harness.rewards import Attempt, RewardContext, RewardPart


class Turns(RewardPart):
    """Sum of the rewards that the task's environment gives for each turn.

    With `objective.credit=steps`, each turn earns its own reward at its last token, which may be the end-of-sequence
    token, and the part is not in the sum (turn-level credit, 2505.11821).

    Traps: if the environment rewards turns rather than progress, many turns earn more than an early answer. If the
    rewards are differences of a potential, as those of `guess` are, the order of policies does not change (Ng et al.,
    1999).
    """

    name = "turns"
    rewards_steps = True
    rewards_turns = True

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [sum(turn.reward for turn in attempt.turns) for attempt in group]

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        # With step credit, the part rewards through `step_rewards`, so in the sum it would count twice.
        return 0.0 if context.credit == "steps" and given is not None else given

    def step_rewards(self, attempt: Attempt, context: RewardContext) -> list[tuple[int, float]]:
        return [(turn.end_tokens, turn.reward) for turn in attempt.turns]
