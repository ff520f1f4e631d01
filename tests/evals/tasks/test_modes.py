"""Tasks that are asked in a mode of thinking."""

from __future__ import annotations

import pytest

from evals.errors import EvalError
from evals.prompts import get_template
from evals.tasks import get_task, task_source, without_mode
from harness.errors import UnknownNameError
from tests.refusals import refuses

PLAIN = get_task("arithmetic")


@pytest.mark.parametrize(
    ("name", "mode", "budget", "flag"),
    [
        ("arithmetic", "think", None, ","),
        ("think12:arithmetic", "think", 12, ","),
        ("direct:arithmetic", "direct", None, "#"),
    ],
)
def test_the_name_says_how_the_same_problems_are_asked(name: str, mode: str, budget: int | None, flag: str) -> None:
    task = get_task(name)
    assert (task.name, task.mode, task.thinking_budget_tokens) == (name, mode, budget)
    asked, known = task.split("test").load(), PLAIN.split("test").load()
    assert [(one.id, one.problem, one.answer) for one in asked] == [(one.id, one.problem, one.answer) for one in known]
    assert get_template("modes_digits").ask(asked[0]) == flag + known[0].problem
    assert task.n_evaluated(None) == len(known)
    assert without_mode(name) == "arithmetic" and task_source(name) is None


def test_no_two_ways_of_asking_are_taken_for_one_another() -> None:
    names = ("arithmetic", "direct:arithmetic", "think1:arithmetic", "think12:arithmetic")
    assert len({get_task(name).split("test").fingerprint for name in names}) == len(names)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("think0:arithmetic", "a budget must be at least 1 token. direct:arithmetic asks for no thinking"),
        ("direct:think8:arithmetic", "names two modes or budgets"),
        ("think8:direct:arithmetic", "names two modes or budgets"),
    ],
)
def test_what_cannot_be_asked_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(EvalError, match=complaint):
        get_task(name)


def test_an_unknown_task_is_told_by_its_own_name() -> None:
    with pytest.raises(UnknownNameError, match="task 'arithmetc'; did you mean arithmetic"):
        get_task("direct:arithmetc")


def test_nothing_is_trained_on_in_a_mode_by_name() -> None:
    """task.direct_frac says it: two ways would be one too many."""
    with refuses(EvalError, "evals.unknown_split", split="train"):
        get_task("direct:arithmetic").split("train")


def test_a_template_without_modes_cannot_ask_for_the_answer_at_once() -> None:
    direct, plain = get_task("direct:arithmetic"), get_template("plain")
    assert "would be asked for steps as ever" in (direct.fault_of_mode(plain) or "")
    assert direct.fault_of_mode(get_template("modes_digits")) is None
    assert get_task("think8:arithmetic").fault_of_mode(plain) is None
