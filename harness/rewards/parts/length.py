"""Rewards for the length of a completion."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from algorithms.objective import Penalise, Soft
from harness.rewards import Attempt, RewardContext, RewardPart
from harness.rewards.parts.correct import seen_verdict


class KimiLength(RewardPart):
    """Kimi k1.5's length reward (2501.12599, section 2.3.3), in [-0.5, 0.5].

    lambda = 0.5 - (n - shortest) / (longest - shortest), where n is the completion's length and the other two are over
    its group. A right answer gets lambda, a wrong one min(0, lambda). If all completions are equally long, each gets 0.
    Whether an answer is right is the verdict that training sees. If there is no verdict, there is no reward.
    """

    name = "kimi_length"

    from_step: int = Field(1, ge=1, description="the part is 0 before this step (Kimi k1.5 starts without the part)")

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        shortest = min(attempt.n_tokens for attempt in group)
        longest = max(attempt.n_tokens for attempt in group)
        if context.step < self.from_step or shortest == longest:
            return [0.0] * len(group)

        def reward(attempt: Attempt) -> float:
            preference = 0.5 - (attempt.n_tokens - shortest) / (longest - shortest)
            verdict = seen_verdict(attempt, context)
            if math.isnan(verdict):
                return math.nan
            return preference if verdict else min(0.0, preference)

        return [reward(attempt) for attempt in group]


class MagistralLength(RewardPart):
    """Magistral's length penalty (2506.10910, section 2.2.2): `soft_punishment` times -`penalty`."""

    name = "magistral_length"

    cache_frac: float = Field(
        0.2,
        gt=0,
        le=1,
        description="fraction of rollout.max_completion_tokens over which the penalty grows to its full size",
    )
    penalty: float = Field(-0.1, le=0, description="the penalty at the limit; default: Magistral (2506.10910)")

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        limit = context.max_completion_tokens
        return [-self.penalty * soft_punishment(attempt.n_tokens, limit, self.cache_frac) for attempt in group]


class Overlong(RewardPart):
    """The term that `objective.overlong` adds to the reward. Type `penalise`: its penalty, for truncated completions.
    Type `soft`: DAPO's `soft_punishment` times its factor."""

    name = "overlong"
    implied_by = "objective.overlong"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        match context.overlong:
            case Penalise(penalty=penalty):
                return [penalty if attempt.truncated else 0.0 for attempt in group]
            case Soft(cache_frac=cache_frac, factor=factor):
                limit = context.max_completion_tokens
                return [factor * soft_punishment(attempt.n_tokens, limit, cache_frac) for attempt in group]
            case other:
                raise ValueError(f"objective.overlong.type={other.type} has no part in the reward")

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        match context.overlong:
            case Penalise(penalty=penalty):
                return 1.0 if penalty else None
            case Soft():
                return 1.0
            case _:
                return None


def soft_punishment(n_tokens: int, max_tokens: int, cache_frac: float) -> float:
    """Return DAPO's soft punishment in [-1, 0] (2503.14476, eq. 13).

    It is 0 up to L - C tokens, falls linearly to -1 at L, and is -1 beyond. L is max_tokens and C = cache_frac x L,
    which need not be an integer. A truncated completion has L tokens.
    """
    cache_tokens = cache_frac * max_tokens
    return max(-1.0, min(0.0, (max_tokens - cache_tokens - n_tokens) / cache_tokens))
