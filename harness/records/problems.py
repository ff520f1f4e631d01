"""problems.jsonl: the prompt and the reference answer of every problem that recorded samples refer to, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

from harness.records.files import append_jsonl, keep_jsonl, read_jsonl, typed_rows

PROBLEMS_FILE = "problems.jsonl"
Split = Literal["train", "test"]


class Problem(Protocol):
    """What is read of a problem, as tasks have them."""

    @property
    def id(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def answer(self) -> str: ...


class ProblemRow(TypedDict):
    """prompt: the rendered text, or the messages of a chat. answer: the reference, "" where the task has none."""

    task: str
    split: str
    problem_id: str
    prompt: str | list[Any]
    answer: str


def read_problems(path: Path) -> list[ProblemRow]:
    """Each problem once, in the order in which they were first drawn; [] without the file.

    Raises DamagedRecordError.
    """
    first: dict[tuple[str, str, str], ProblemRow] = {}
    for row in typed_rows(path, read_jsonl(path), ProblemRow):
        first.setdefault((row["task"], row["split"], row["problem_id"]), row)
    return list(first.values())


class ProblemsFile:
    """Writes problems.jsonl. A problem that is there, from before a kill say, is not written again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, task: str, split: Split, problems: Iterable[Problem], render: Callable[[str], Any]) -> None:
        """Record those that are new. Call it before the first sample that refers to them is recorded.

        render: a problem's statement -> its prompt.
        """
        new = {key: one for one in problems if (key := (task, split, one.id)) not in self._known}
        if not new:
            return
        rows = (
            {"task": task, "split": split, "problem_id": one.id, "prompt": render(one.problem), "answer": one.answer}
            for one in new.values()
        )
        append_jsonl(self._path, rows)
        self._known.update(new)

    @cached_property
    def _known(self) -> set[tuple[str, str, str]]:
        keep_jsonl(self._path, lambda row: True)  # without the torn end that a kill may have left
        return {(row["task"], row["split"], row["problem_id"]) for row in read_problems(self._path)}
