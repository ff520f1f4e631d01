"""Reward for a right answer, as the grader sees it and as an imperfect verifier would."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.random_keys import random_key, uniform
from harness.rewards.attempt import Attempt, RewardContext


def graded(attempt: Attempt) -> float:
    """The true verdict: 1 for a correct answer, else 0; NaN where the grader came to no end."""
    return math.nan if attempt.verdict.reason in ("timeout", "crash") else float(attempt.verdict.correct)


def correct(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """The true verdict."""
    return [graded(attempt) for attempt in group]


def proxy_correct(group: Sequence[Attempt], context: RewardContext) -> list[float]:
    """`correct` with label noise: what training sees in its place."""
    return [judged(attempt, context) for attempt in group]


def judged(attempt: Attempt, context: RewardContext) -> float:
    """The verdict that training sees: a wrong answer passes with `noise.false_positive_rate`, a right one fails with
    `noise.false_negative_rate`. The draw is keyed by seed, step, problem and sample, so that arms share it."""
    verdict, noise = graded(attempt), context.options.noise
    rate = noise.false_negative_rate if verdict else noise.false_positive_rate
    key = random_key(context.seed, "select", context.step, f"verdict/{attempt.problem.id}", attempt.sample)
    return 1.0 - verdict if uniform(key) < rate else verdict
