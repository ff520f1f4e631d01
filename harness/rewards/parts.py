"""Reward parts: each gives one completion a number. Their weights are the knobs `reward.parts.<name>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evals.grading import Verdict
from evals.tasks.base import Problem


@dataclass(frozen=True)
class Attempt:
    """A completion to be rewarded, with the grader's verdict on it."""

    problem: Problem
    text: str
    n_tokens: int
    truncated: bool
    verdict: Verdict


RewardPart = Callable[[Attempt], float]

_BOX = re.compile(r"\\boxed\s*\{(?P<content>[^{}]*)\}")
_NUMBER = re.compile(r"\d")


def correct(attempt: Attempt) -> float:
    """1 for a correct answer, else 0."""
    return float(attempt.verdict.correct)


def boxed_number(attempt: Attempt) -> float:
    """How far a completion gets towards an answer that can be read: .5 for reaching a box, 1 for a number in it.

    For models too weak to be right often enough to learn from correctness alone.
    """
    boxes = _BOX.findall(attempt.text)
    if not boxes:
        return 0.0
    return 1.0 if _NUMBER.search(boxes[-1]) else 0.5


PARTS: Mapping[str, RewardPart] = MappingProxyType({"correct": correct, "boxed_number": boxed_number})
