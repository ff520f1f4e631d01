"""Reward for the turns of a completion that an environment answers."""

from __future__ import annotations

from collections.abc import Sequence

from harness.rewards import Attempt, RewardContext, RewardPart


class Turns(RewardPart):
    """What the task's environment gives for each turn, added up.

    With `objective.credit=steps` each turn earns its own reward at the token where it ends, the end-of-sequence token
    included, and the part is not in the sum (turn-level credit, 2505.11821).

    Beware of environments that pay for a turn rather than for progress: many turns then earn more than an early answer.
    Where the rewards are differences of one potential, as those of `guess` are, the order of policies stays what it is
    (Ng et al., 1999).
    """

    name = "turns"
    rewards_steps = True
    rewards_turns = True

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [sum(turn.reward for turn in attempt.turns) for attempt in group]

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        # With step credit the part acts through `step_rewards`, so in the sum it would count twice.
        return 0.0 if context.credit == "steps" and given is not None else given

    def step_rewards(self, attempt: Attempt, context: RewardContext) -> list[tuple[int, float]]:
        return [(turn.end_tokens, turn.reward) for turn in attempt.turns]
