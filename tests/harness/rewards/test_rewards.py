from __future__ import annotations

import pytest

from evals.grading import grade
from evals.tasks.base import Problem
from harness.rewards import PARTS, Attempt, reward_attempts

PROBLEM = Problem(id="1", problem="What is 6 times 7?", answer="42")


def attempt(text: str, grader: str = "numeric") -> Attempt:
    return Attempt(PROBLEM, text, n_tokens=5, truncated=False, verdict=grade(text, PROBLEM.answer, grader))


@pytest.mark.parametrize(("text", "value"), [("It is \\boxed{42}.", 1), ("It is \\boxed{41}.", 0), ("", 0)])
def test_correct(text: str, value: float) -> None:
    assert PARTS["correct"](attempt(text)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("I do not know", 0),
        ("", 0),
        ("It is 41", 0.5),  # a number that can be graded, outside a box
        ("It is \\boxed{41}", 1),
        ("It is \\boxed{42}", 1),
        ("It is \\boxed{\\frac{1}{2}}", 1),
        ("It is \\boxed{many}", 0.5),
        ("It is \\boxed{}", 0.5),
    ],
)
def test_format(text: str, value: float) -> None:
    assert PARTS["format"](attempt(text)) == value


def test_total_is_the_weighted_sum() -> None:
    tried = [attempt("\\boxed{42}"), attempt("\\boxed{41}"), attempt("nothing"), attempt("42")]
    rewards = reward_attempts(tried, {"correct": 2.0, "format": -0.5})
    assert rewards.parts == {"correct": [1, 0, 0, 1], "format": [1, 1, 0, 0.5]}
    assert rewards.total == [1.5, -0.5, 0, 1.75]


def test_only_weighted_parts_are_computed() -> None:
    assert reward_attempts([attempt("42")], {"correct": 1.0}).parts.keys() == {"correct"}


def test_no_attempts() -> None:
    assert reward_attempts([], {"correct": 1.0}).total == []
