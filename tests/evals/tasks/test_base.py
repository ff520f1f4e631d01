from __future__ import annotations

import pytest

from evals.errors import EvalError
from evals.tasks.base import Generated, Problem, Task
from harness.errors import RefusedError
from tests.refusals import refuses


def task(template: str = "plain", grader: str | None = "exact", extract: str = "chain") -> Task:
    return Task("t", template, grader, extract, 1.0, {"test": Generated(lambda: [Problem("a", "b", "c")], version=3)})


def test_generated_splits():
    source = task().split("test")
    assert source.fingerprint == "generated:v3"
    assert list(source.load()) == [Problem("a", "b", "c")]


def test_unknown_split_names_the_nearest():
    with refuses(
        EvalError, "evals.unknown_split", task="t", split="tset", nearest="; did you mean test?", known="test"
    ):
        task().split("tset")


@pytest.mark.parametrize(
    ("field", "given", "nearest"),
    [("template", "plian", "plain"), ("grader", "exat", "exact"), ("extract", "chian", "chain")],
)
def test_unknown_names_are_refused(field, given, nearest):
    with refuses(RefusedError, "bench.unknown_name", name=repr(given), nearest=f"; did you mean {nearest}?"):
        task(**{field: given}).require_known_names()


def test_a_task_may_have_no_grader():
    assert task().require_grader() == "exact"
    with refuses(EvalError, "evals.task_without_grader", task="t"):
        task(grader=None).require_grader()
