"""The sums of the task arithmetic with unit tests in place of answers, for a model that cannot write Python: what it
writes behind `#` becomes a program that returns it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.grading.extract import extract_hash
from evals.shelves.code.grading import CODE
from evals.tasks import get_task

TRAIN, TEST = 64, 8


def write_sums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two tasks with the same problems: by unit tests, and by the grader `numeric`."""
    monkeypatch.setitem(vars(CODE), "find", _program_of)
    for split, count in (("train", TRAIN), ("test", TEST)):
        rows = [
            {
                "id": problem.id,
                "problem": problem.problem,
                "answer": problem.answer,
                "entry_point": "total",
                "tests": [{"args": [], "returns": int(problem.answer)}],
            }
            for problem in get_task("arithmetic").split(split).load()[:count]
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return _write_task(folder, "unit_tests", "code"), _write_task(folder, "numeric", "hash")


def _write_task(folder: Path, grader: str, extract: str) -> str:
    path = folder / f"{grader}.yaml"
    path.write_text(
        f"name: sums\ntemplate: plain\ngrader: {grader}\nextract: {extract}\n"
        "splits:\n  train: {file: train.jsonl}\n  test: {file: test.jsonl}\n"
    )
    return str(path)


def _program_of(completion: str) -> str | None:
    found = extract_hash(completion)
    return None if not found else f"def total():\n    return int('{found}')"
