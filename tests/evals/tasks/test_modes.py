"""Tasks that are asked in a mode of thinking."""

from __future__ import annotations

import pytest

from evals.errors import EvalError
from evals.prompts import get_template
from evals.tasks import get_task, task_source, without_mode
from harness.errors import RefusedError
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
    ("name", "code", "fields"),
    [
        ("think0:arithmetic", "evals.budget_too_small", {"task": "arithmetic"}),
        ("direct:think8:arithmetic", "evals.two_modes_named", {}),
        ("think8:direct:arithmetic", "evals.two_modes_named", {}),
        ("direct:arithmetc", "bench.unknown_name", {"name": "'arithmetc'", "noun": "task"}),
    ],
)
def test_what_cannot_be_asked_is_refused(name: str, code: str, fields: dict[str, str]) -> None:
    with refuses(RefusedError, code, **fields):
        get_task(name)


def test_nothing_is_trained_on_in_a_mode_by_name() -> None:
    """task.direct_frac says it: two ways would be one too many."""
    with refuses(EvalError, "evals.unknown_split", split="train"):
        get_task("direct:arithmetic").split("train")


def test_a_template_without_modes_cannot_ask_for_the_answer_at_once() -> None:
    direct, plain = get_task("direct:arithmetic"), get_template("plain")
    assert direct.fault_of_mode(plain) is not None
    assert direct.fault_of_mode(get_template("modes_digits")) is None
    assert get_task("think8:arithmetic").fault_of_mode(plain) is None
