"""Reward for a right answer, as the grader sees it and as an imperfect verifier would."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from evals.grading import NO_VERDICT
from harness.random_keys import random_key, uniform
from harness.rewards import Attempt, RewardContext, RewardPart


class Correct(RewardPart):
    """1 for a correct answer, else 0; no reward if grading timed out or crashed, or if a judge gave no verdict.

    Its options are those of an imperfect verifier, whose verdict takes its place in training (`ProxyCorrect`); the true
    one is recorded beside it.
    """

    name = "correct"
    section = "noise"

    false_positive_rate: float = Field(
        0.0, ge=0, le=1, description="share of wrong answers that training takes as right"
    )
    false_negative_rate: float = Field(
        0.0, ge=0, le=1, description="share of right answers that training takes as wrong"
    )

    @property
    def is_noisy(self) -> bool:
        """True if training sees wrong verdicts."""
        return self.false_positive_rate > 0 or self.false_negative_rate > 0

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [true_verdict(attempt) for attempt in group]

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        # Recorded only; `ProxyCorrect` takes its place in the sum.
        return 0.0 if self.is_noisy else given


class JudgeScore(RewardPart):
    """The score of the judge in `reward.grader`, scaled to 0 to 1; no reward if the reply has no score.

    Its file must say `right_from`, by which the same number is also a verdict.
    """

    name = "judge_score"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return _scores(group)


class PassedTests(RewardPart):
    """The share of unit tests that a program passes; no reward where it waited for so long that nobody can tell.

    A program that passes some tests earns more than one that passes none, which `correct` treats alike. Beware of
    problems whose tests a constant passes: it is learned first.
    """

    name = "tests_passed"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return _scores(group)


class ProxyCorrect(RewardPart):
    """`correct` with label noise: what training sees in its place."""

    name = "proxy_correct"
    implied_by = "reward.noise"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [seen_verdict(attempt, context) for attempt in group]

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        return context.options.parts["correct"] if context.options.of(Correct).is_noisy else None


def _scores(group: Sequence[Attempt]) -> list[float]:
    """Return what the grader gives besides its verdicts; NaN if it gives nothing."""
    scores = [attempt.verdict.score for attempt in group]
    return [math.nan if score is None else score for score in scores]


def true_verdict(attempt: Attempt) -> float:
    """Return 1 for a correct answer, else 0; NaN if the grader reached no verdict."""
    return math.nan if attempt.verdict.reason in NO_VERDICT else float(attempt.verdict.correct)


def seen_verdict(attempt: Attempt, context: RewardContext) -> float:
    """Return the verdict that training sees.

    A wrong answer passes with `noise.false_positive_rate`, a right one fails with `noise.false_negative_rate`. The draw
    is keyed by seed, step, problem and sample, so arms share it.
    """
    verdict, noise = true_verdict(attempt), context.options.of(Correct)
    rate = noise.false_negative_rate if verdict else noise.false_positive_rate
    key = random_key(context.seed, "select", context.step, f"verdict/{attempt.problem.id}", attempt.sample)
    # 1 - NaN is NaN: an attempt without a verdict stays one.
    return 1.0 - verdict if uniform(key) < rate else verdict
