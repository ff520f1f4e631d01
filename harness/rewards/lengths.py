"""Rewards for the length of a completion."""

from __future__ import annotations

import math
from collections.abc import Sequence

from algorithms.objective import Penalise, Soft
from harness.rewards.attempt import Attempt, RewardContext
from harness.rewards.verdicts import judged


def kimi_length(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """Kimi k1.5's length reward (2501.12599, section 2.3.3), in [-0.5, 0.5]; 0 before step `kimi_length.from_step`.

    lambda = 0.5 - (n - shortest) / (longest - shortest) over the group, 0 where all are equally long; a wrong answer
    gets min(0, lambda). What is right is the verdict that training sees; NaN where there is none.
    """
    if context.step < context.options.kimi_length.from_step:
        return [0.0] * len(group)
    shortest = min(attempt.n_tokens for attempt in group)
    longest = max(attempt.n_tokens for attempt in group)
    if shortest == longest:
        return [0.0] * len(group)

    def reward(attempt: Attempt) -> float:
        preference = 0.5 - (attempt.n_tokens - shortest) / (longest - shortest)
        verdict = judged(attempt, context)
        if math.isnan(verdict):
            return math.nan
        return preference if verdict else min(0.0, preference)

    return [reward(attempt) for attempt in group]


def magistral_length(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """Magistral's length penalty (2506.10910, section 2.2.2): `soft_punishment` times the size of the penalty."""
    options = context.options.magistral_length
    return [
        -options.penalty * soft_punishment(attempt.n_tokens, context.max_completion_tokens, options.cache_frac)
        for attempt in group
    ]


def overlong(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """What `objective.overlong` adds to the reward: of type `penalise`, its penalty where the limit cut a completion;
    of type `soft`, DAPO's `soft_punishment` times its factor; otherwise 0."""
    match context.overlong:
        case Penalise(penalty=penalty):
            return [penalty if attempt.truncated else 0.0 for attempt in group]
        case Soft(cache_frac=cache_frac, factor=factor):
            limit = context.max_completion_tokens
            return [factor * soft_punishment(attempt.n_tokens, limit, cache_frac) for attempt in group]
        case _:
            return [0.0] * len(group)


def soft_punishment(n_tokens: int, max_tokens: int, cache_frac: float) -> float:
    """In [-1, 0]: 0 up to L - C tokens, then linear to -1 at L; -1 beyond (DAPO, 2503.14476, eq. 13).

    L is max_tokens and C = cache_frac x L, which need not be whole. A completion cut at the limit has L tokens.
    """
    cache_tokens = cache_frac * max_tokens
    return max(-1.0, min(0.0, (max_tokens - cache_tokens - n_tokens) / cache_tokens))
