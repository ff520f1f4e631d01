"""Rewards for a correct answer: by the grader, by a judge's score, and by a simulated imperfect verifier."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from evals.grading import NO_VERDICT
from harness.random_keys import random_key, uniform
from harness.rewards import Attempt, RewardContext, RewardPart


class Correct(RewardPart):
    """1 for a correct answer, else 0; no reward if grading timed out or crashed, or if a judge gave no verdict.

    Its options simulate an imperfect verifier. If they are set, training uses that verifier's verdict (`ProxyCorrect`),
    and the true verdict is only recorded.
    """

    name = "correct"
    section = "noise"

    false_positive_rate: float = Field(
        0.0, ge=0, le=1, description="fraction of wrong answers that training counts as right"
    )
    false_negative_rate: float = Field(
        0.0, ge=0, le=1, description="fraction of right answers that training counts as wrong"
    )

    @property
    def is_noisy(self) -> bool:
        """True if training sees wrong verdicts."""
        return self.false_positive_rate > 0 or self.false_negative_rate > 0

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [true_verdict(attempt) for attempt in group]

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        # With noise, this part is only recorded, and `ProxyCorrect` is in the sum.
        return 0.0 if self.is_noisy else given


class JudgeScore(RewardPart):
    """The score of the judge in `reward.grader`, scaled to [0, 1]; no reward if the reply has no score.

    The judge's file must set `right_from`, the score from which an answer counts as right.
    """

    name = "judge_score"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return scores_given(group)


class ProxyCorrect(RewardPart):
    """`correct` with label noise, which training uses instead of `correct`."""

    name = "proxy_correct"
    implied_by = "reward.noise"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [seen_verdict(attempt, context) for attempt in group]

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        return context.options.parts["correct"] if context.options.of(Correct).is_noisy else None


def scores_given(group: Sequence[Attempt]) -> list[float]:
    """Return the grader's score of each attempt, or NaN if it gave none."""
    scores = [attempt.verdict.score for attempt in group]
    return [math.nan if score is None else score for score in scores]


def true_verdict(attempt: Attempt) -> float:
    """Return 1 for a correct answer, else 0; NaN if the grader reached no verdict."""
    return math.nan if attempt.verdict.reason in NO_VERDICT else float(attempt.verdict.correct)


def seen_verdict(attempt: Attempt, context: RewardContext) -> float:
    """Return the verdict that training sees: 1, 0, or NaN if there is none.

    A wrong answer passes with probability `noise.false_positive_rate`, and a right one fails with probability
    `noise.false_negative_rate`. The random number is keyed by seed, step, problem and sample, so all arms share it.
    """
    verdict, noise = true_verdict(attempt), context.options.of(Correct)
    rate = noise.false_negative_rate if verdict else noise.false_positive_rate
    key = random_key(context.seed, "select", context.step, f"verdict/{attempt.problem.id}", attempt.sample)
    # 1 - NaN is NaN, so an attempt without a verdict stays without one.
    return 1.0 - verdict if uniform(key) < rate else verdict
