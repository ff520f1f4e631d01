"""Samplers for tests, and folders of rows for lm-eval's tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.evaluate import graded_rows
from evals.prompts import Message
from evals.sampler import Draw, Drawn, SamplingParams
from evals.samples import SampleRow
from evals.tasks.base import Problem, Task
from evals.tasks.environment import Turn


class Scripted:
    """A sampler that gives each draw the text that `script` has for it, and remembers what it was asked."""

    def __init__(self, script: Callable[[Draw], str]) -> None:
        self._script = script
        self.calls: list[tuple[list[Draw], SamplingParams]] = []

    def draw(self, draws: Sequence[Draw], decoding: SamplingParams) -> list[Drawn]:
        self.calls.append((list(draws), decoding))
        return [Drawn(text, len(text.split()), truncated=False) for text in map(self._script, draws)]


def undrawn(draw: Draw) -> str:
    raise AssertionError(f"{draw} was drawn")


def write_rows(folder: Path, files: Mapping[str, Iterable[Mapping[str, Any]]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def draw_of(problem: Problem, sample: int, prompt: str | list[Message] = "") -> Draw:
    return Draw(prompt, problem.id, sample, problem)


def graded_row(
    task: Task,
    draw: Draw,
    text: str,
    n_tokens: int,
    truncated: bool,
    grader: str | None = None,
    turns: Sequence[Turn] = (),
) -> SampleRow:
    """The record of one completion."""
    (row,) = graded_rows(task, [draw], [Drawn(text, n_tokens, truncated, turns=turns)], grader)
    return row
