"""The embedded tasks with an environment: what it answers, what it rewards, and which turn is graded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.evaluate import regrade
from evals.tasks import calculator, get_task, guess
from evals.tasks.base import Environment, Problem
from evals.tasks.environment import Reply, Turn, last_turn, turns_as_json, turns_from_json
from tests.evals.scripted import draw_of, graded_row
from tests.refusals import refuses

NUMBERS = Problem(id="p", problem="3,10=", answer="5")


def replies(problem: Problem, said: list[str]) -> list[Reply]:
    return [guess.reply(problem, said[: count + 1]) for count in range(len(said))]


def test_the_replies_to_guesses() -> None:
    answered = replies(NUMBERS, ["#4", "wait", "5#8", "#8,5", "#5"])
    assert [one.text for one in answered] == ["+", "wait", "w", "wait", "="]
    assert [one.done for one in answered] == [False] * 4 + [True]
    logs = [math.log(8 / 6), 0.0, math.log(6 / 3), 0.0, math.log(3)]
    assert [one.reward for one in answered] == pytest.approx([one / math.log(8) for one in logs])


@given(st.integers(3, 10), st.lists(st.integers(0, 12), max_size=6))
def test_rewards_add_up_to_what_is_known_and_never_to_more(hidden: int, guesses: list[int]) -> None:
    """Against a list of all numbers that the replies allow."""
    problem = Problem(id="p", problem="3,10=", answer=str(hidden))
    left = list(range(3, 11))
    earned = 0.0
    for count, number in enumerate(guesses, start=1):
        answer = guess.reply(problem, [f"#{one}" for one in guesses[:count]])
        sign = {"+": 1, "w": -1, "=": 0}[answer.text]
        left = [one for one in left if (one > number) - (one < number) == sign]
        earned += answer.reward
        assert answer.reward >= 0
        assert earned == pytest.approx(1 - math.log(len(left)) / math.log(8))


@pytest.mark.parametrize("name", ["guess", "calculator"])
def test_the_solutions_end_with_the_answer_and_no_earlier(name: str) -> None:
    task = get_task(name)
    assert task.environment is not None
    for split in ("train", "test"):
        problems = list(task.split(split).load())
        assert len({problem.id for problem in problems}) == len(problems) >= 256
        for problem in problems[:200]:
            said = problem.require_solution().split("\n")
            done = [task.environment.reply(problem, said[: count + 1]).done for count in range(len(said))]
            assert done == [False] * (len(said) - 1) + [True]
            assert graded_row(task, draw_of(problem, 0), said[-1], 1, False)["correct"]
    trained = {problem.problem for problem in task.split("train").load()}
    assert trained.isdisjoint(problem.problem for problem in task.split("test").load())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3+5=", 8),
        ("so 3+5*2-4= ", 9),
        ("2*3*4-30=", -6),
        ("=", None),
        ("3+=", None),
        ("3+5", None),
        ("9" * 200 + "=", None),
        ("__import__('os')=", None),
    ],
)
def test_the_calculator(text: str, value: int | None) -> None:
    assert calculator.value_of(text) == value
    reply = calculator.reply(NUMBERS, ["1+1=", text])
    assert reply == Reply("wait" if value is None else str(value))
    assert calculator.reply(NUMBERS, [text, "#4"]).done


def test_the_last_turn_is_graded_also_again() -> None:
    """The guesses of earlier turns run into it in the text: `#4#5` and `#45`."""
    task = get_task("guess")
    right = [Turn(2, 3, "+", 0.1), Turn(4, 6, "=", 0.9)]
    assert last_turn("#4#5", right) == "#5"
    assert last_turn("#4#5", right[:1]) == last_turn("#4#5", ()) == "#4#5"
    rows = [
        graded_row(task, draw_of(NUMBERS, 0), "#4#5", 6, False, turns=right),
        graded_row(task, draw_of(NUMBERS, 1), "#45", 5, True, turns=[Turn(2, 3, "+"), Turn(3, 5)]),
    ]
    assert [(row["correct"], row["extracted"]) for row in rows] == [(True, "5"), (False, None)]
    assert regrade(task, [NUMBERS], rows) == rows
    assert turns_from_json(turns_as_json(right)) == right


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with refuses(EvalError, "evals.turn_reward_not_finite"):
        Reply("", reward=reward)


def test_an_environment_that_is_none_is_refused() -> None:
    with refuses(EvalError, "evals.answer_not_a_reply", answer="yes", problem="p"):
        Environment(lambda problem, said: "yes", max_turns=2).answer(NUMBERS, ["#1"])  # type: ignore[arg-type, return-value]
    with refuses(EvalError, "evals.max_turns_too_small", max_turns=0):
        Environment(guess.reply, max_turns=0)


def test_a_thinking_budget_does_not_cut_turns() -> None:
    with pytest.raises(EvalError, match=r"think8:guess: .*several turns.*under its own name"):
        get_task("think8:guess")
