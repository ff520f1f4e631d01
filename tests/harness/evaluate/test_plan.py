"""What is wrong with an evaluation is found before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.errors import EvalError
from harness.evaluate.convention import Convention
from harness.evaluate.evaluation import TaskEvaluation
from harness.plan.subject import find_subject


def planned(task: str | Path, problems: int | None = None, grader: str | None = None) -> TaskEvaluation:
    subject = find_subject("builtin:tiny", "torch", "cpu", "float32")
    convention = Convention.named("greedy", subject).changed(problems=problems, grader=grader)
    (found,) = convention.evaluations(subject, [str(task)])
    return found


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A task whose second answer is no number, and whose third is nothing at all."""
    answers = ["18", "x+1", "\\frac{1}{", ""]
    rows = [{"id": f"p{number}", "problem": "How many?", "answer": answer} for number, answer in enumerate(answers)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text("name: mine\nsplits: {test: {file: rows.jsonl}}\n")
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("grader", "problems", "says"),
    [
        ("numeric", 2, r"problem p1: the reference answer 'x\+1' is not a number"),
        ("choice", 2, r"problem p0: the reference answer '18' is not a letter"),
        (None, 3, r"problem p2: the reference answer .* cannot be read as mathematics"),
        ("exact", None, "problem p3: there is no answer to compare with"),
        ("own", 1, "problem p0: the grader 'own' is the problem's own comparison"),
    ],
)
def test_an_answer_that_the_grader_cannot_read_is_named(
    mine: Path, grader: str | None, problems: int | None, says: str
) -> None:
    with pytest.raises(EvalError, match=rf"mine\.yaml, {says}"):
        planned(mine, problems, grader)


def test_problems_that_are_not_evaluated_are_not_looked_at(mine: Path) -> None:
    assert [problem.id for problem in planned(mine, 1, "numeric").problems] == ["p0"]
    assert [problem.id for problem in planned(mine, 2).problems] == ["p0", "p1"]


def test_more_problems_than_there_are_is_remarked() -> None:
    asked = planned("arithmetic", 99_999)
    assert len(asked.problems) == 256
    assert asked.warning == "--problems is 99999, but there are 256; all of them are used."
    assert planned("arithmetic", 256).warning is None
    assert planned("arithmetic").warning is None
