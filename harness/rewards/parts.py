"""Reward parts: each gives one completion a number. Their weights are the knobs `reward.parts.<name>`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evals.grading import Verdict
from evals.grading.numbers import parse_number
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


def correct(attempt: Attempt) -> float:
    """1 for a correct answer, else 0."""
    return float(attempt.verdict.correct)


def format_reached(attempt: Attempt) -> float:
    """How far a completion gets towards an answer that can be graded: half for a box, half for a number as the answer.

    For models too weak to be right often enough to learn from correctness alone.
    """
    reaches_box = "\\boxed{" in attempt.text
    gives_number = parse_number(attempt.verdict.extracted or "") is not None
    return 0.5 * reaches_box + 0.5 * gives_number


PARTS: Mapping[str, RewardPart] = MappingProxyType({"correct": correct, "format": format_reached})
