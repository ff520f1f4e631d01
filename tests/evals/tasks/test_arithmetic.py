from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.tasks.arithmetic import TASK, has_faulty_step, partial_sums, written_steps
from evals.tasks.base import Problem

SUM = Problem(id="3+5+9", problem="3+5+9=", answer="17")


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("8,17#17", [("8", True), ("17", True)]),
        ("8,18#18", [("8", True), ("18", False)]),
        ("9,17#17", [("9", False), ("17", True)]),
        ("17,8#17", [("17", False), ("8", False)]),
        ("8,17,17#17", [("8", True), ("17", True), ("17", False)]),
        ("8", [("8", True)]),
        ("8,17,", [("8", True), ("17", True)]),
        ("08,17", [("08", False), ("17", True)]),
        ("9,wait,8,17#17", [("8", True), ("17", True)]),
        ("9wait8,wait,7#17", [("7", False)]),
        ("8#17,8", [("8", True)]),
        ("#17", []),
        ("8,wait#17", []),
        (",,", []),
        ("", []),
    ],
)
def test_written_steps(text: str, steps: list[tuple[str, bool]]) -> None:
    found = written_steps(SUM, text)
    assert [(text[: step.end].rpartition(",")[2].rpartition("wait")[2], step.right) for step in found] == steps


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        ("8,17#17", False),
        ("9,wait,8,17#17", False),
        ("8,18#18", True),
        ("8#17", True),  # a partial sum is left out
        ("8,17,17#17", True),
        ("8,,17#17", True),
        ("#17", None),
        ("8,17,wait#17", None),
    ],
)
def test_has_faulty_step(text: str, faulty: bool | None) -> None:
    assert has_faulty_step(SUM, text) is faulty


@given(st.lists(st.integers(1, 9), min_size=3, max_size=7))
def test_solutions_have_only_right_steps(digits: list[int]) -> None:
    expression = "+".join(map(str, digits))
    problem = Problem(id=expression, problem=f"{expression}=", answer=str(sum(digits)))
    solution = ",".join(map(str, partial_sums(tuple(digits)))) + f"#{sum(digits)}"
    assert [step.right for step in written_steps(problem, solution)] == [True] * (len(digits) - 1)
    assert has_faulty_step(problem, solution) is False


def test_the_task_judges_its_steps() -> None:
    assert TASK.written_steps is written_steps
    assert TASK.check_steps is has_faulty_step
