"""All that is asked of one model, in one go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.errors import EvalError
from evals.shelves.code import grading
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.evaluate.suite import Suite, SuiteResult, paired_changes
from harness.sampling.sampler import EngineSampler
from harness.shelves.memorisation.cli import MemorisationProbe
from tests.harness.evaluate.conftest import Make
from tests.harness.evaluate.test_evaluation import Counting


def result(label: str, budgets: list[int | None], correct: list[list[bool]]) -> SuiteResult:
    rows: Any = [[{"task": "t", "problem_id": "p", "sample": 0, "correct": one[0]}] for one in correct]
    return SuiteResult(label, [{"thinking_budget_tokens": budget} for budget in budgets], rows, None, None, [])


def test_changes_are_named_by_task_and_thinking_budget() -> None:
    before = result("before", [None, 8, 16], [[False], [True], [False]])
    after = result("after", [None, 8, 16], [[True], [False], [False]])
    found = [(change.task, change.difference) for change in paired_changes(before, after)]
    assert found == [("t", 1.0), ("t, thinking 8", -1.0), ("t, thinking 16", 0.0)]


def test_statements_are_probed_once_a_task(
    evaluation: Make, sampler: EngineSampler, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [Problem("long", "1 + 2 + 3 + 4 + 5 + 6 + 7 = what", "28")]
    monkeypatch.setattr(Suite, "_statements", lambda self: [(get_task("arithmetic"), problems)])
    asked = evaluation(problems=2, samples=1)
    both = Suite(asked.subject, [asked], None, MemorisationProbe(), 16)
    found = both.run(home, lambda: sampler, lambda stage: lambda done, total, remark: None)
    assert [one["problems"] for one in found.memorisation] == [1]
    monkeypatch.undo()
    twice = Suite(asked.subject, [asked, evaluation(thinking_budget_tokens=4)], None, MemorisationProbe(), 16)
    assert [task.name for task, _ in twice._statements()] == ["arithmetic"]


def test_statements_that_are_too_short_are_refused_before_anything_is_drawn(
    evaluation: Make, sampler: EngineSampler, home: Path
) -> None:
    counting = Counting(sampler)
    asked = evaluation(problems=2, samples=1)
    both = Suite(asked.subject, [asked], None, MemorisationProbe(), 16)
    with pytest.raises(EvalError, match="none of 2 problems has a statement"):
        both.run(home, lambda: counting, lambda stage: lambda *words: None)  # type: ignore[arg-type, return-value]
    assert counting.drawn == []


@pytest.mark.parametrize("allowed", [False, True])
def test_programs_are_run_for_statements_where_that_is_allowed(
    evaluation: Make, sampler: EngineSampler, home: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    lent: list[bool] = []

    class Probe(MemorisationProbe):
        def run(self, *asked: Any) -> dict[str, Any]:
            lent.append(bool(grading._lent))
            return {}

    monkeypatch.setattr(Suite, "_statements", lambda self: [(get_task("arithmetic"), [Problem("p", "1 + 2", "3")])])
    monkeypatch.setattr(Probe, "require", lambda self, task, problems: None)
    asked = replace(evaluation(problems=1, samples=1), allow_code=allowed)
    Suite(asked.subject, [asked], None, Probe()).run(home, lambda: sampler, lambda stage: lambda *words: None)
    assert lent == [allowed]
