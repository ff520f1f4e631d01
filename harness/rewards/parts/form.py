"""Rewards for the form of a completion, whatever its content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from evals.grading.numeric import parse_number
from harness.rewards import Attempt, RewardContext, RewardPart

_TAG = r"</?(?:think|answer)>"
_CONTENT = rf"(?!\s*{_TAG})(?:(?!{_TAG}).)+"

PATTERNS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        # One non-empty thought, then one non-empty answer, and nothing around them (DeepSeek-R1, 2501.12948).
        "think_answer": re.compile(rf"\s*<think>{_CONTENT}</think>\s*<answer>{_CONTENT}</answer>\s*", re.DOTALL),
        # Work, then one `#` followed by an integer: the form of the arithmetic task's solutions.
        "work_hash": re.compile(r"\s*[^#\s][^#]*#\s*-?[0-9]+\s*"),
    }
)
"""Name -> the pattern that the complete text must match."""


class Format(RewardPart):
    """1 if the completion has the form `reward.format.pattern`, else 0."""

    name = "format"

    pattern: Literal["think_answer", "work_hash"] = Field(
        "think_answer",
        description="think_answer: <think>..</think><answer>..</answer>; work_hash: work, then # and a number "
        "(arithmetic)",
    )

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        pattern = PATTERNS[self.pattern]
        return [float(pattern.fullmatch(attempt.text) is not None) for attempt in group]


class ReachesAnswer(RewardPart):
    """0.5 if the text contains a LaTeX box, plus 0.5 if the extracted answer is a number.

    For models that are right too rarely to learn from correctness alone.
    """

    name = "reaches_answer"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [
            0.5 * ("\\boxed{" in attempt.text) + 0.5 * (parse_number(attempt.verdict.extracted or "") is not None)
            for attempt in group
        ]
