"""Reward for a program by the unit tests that it passes."""

from __future__ import annotations

from collections.abc import Sequence

from harness.rewards import Attempt, RewardContext, RewardPart
from harness.rewards.parts.correct import scores_given


class PassedTests(RewardPart):
    """The share of unit tests that a program passes; no reward where it waited for so long that nobody can tell.

    A program that passes some tests earns more than one that passes none, which `correct` treats alike. Beware of
    problems whose tests a constant passes: it is learned first.
    """

    name = "tests_passed"
    needs_code = True

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return scores_given(group)
