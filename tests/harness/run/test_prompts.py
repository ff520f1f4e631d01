from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evals.tasks.base import Problem
from harness.run.prompts import prompts_of_step

PROBLEMS = [Problem(id=str(number), problem=f"{number}", answer="0") for number in range(10)]


def ids(steps: range, seed: int = 0, count: int = 4, problems: list[Problem] = PROBLEMS) -> list[str]:
    return [problem.id for step in steps for problem in prompts_of_step(problems, seed, step, count)]


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 5))
def test_every_problem_once_an_epoch(total: int, count: int, seed: int) -> None:
    problems = PROBLEMS[: min(total, 10)]
    drawn = ids(range(1, 2 * len(problems) + 1), seed, count, problems)
    for start in range(0, len(drawn) - len(problems) + 1, len(problems)):
        assert sorted(drawn[start : start + len(problems)]) == sorted(problem.id for problem in problems)


def test_depends_on_seed_and_step_alone() -> None:
    assert ids(range(3, 4)) == ids(range(1, 8))[8:12]
    assert ids(range(1, 3), seed=1) != ids(range(1, 3), seed=2)


def test_epochs_differ() -> None:
    assert ids(range(1, 2), count=10) != ids(range(2, 3), count=10)


def test_an_epoch_may_end_inside_a_step() -> None:
    third = ids(range(3, 4))
    assert third[:2] == ids(range(1, 2), count=10)[8:]
    assert third[2:] == ids(range(2, 3), count=10)[:2]
