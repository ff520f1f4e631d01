"""Small Python functions, graded by unit tests: 12 training problems and 8 evaluation problems, easy ones first.

They were written for this project, each with a solution. They are far too few to compare arms: they show the format and
exercise the grader. `difficulty` is 1 for an expression, 2 for a loop, 3 for an algorithm.
"""

from __future__ import annotations

from pathlib import Path

from evals.shelves.code.grading import NAME
from evals.tasks.base import Task
from evals.tasks.rows import LocalFile, TaskRows


def _split(name: str, count: int, digest: str) -> TaskRows:
    file = LocalFile(f"programs_{name}.jsonl", Path(__file__).parent)
    return TaskRows(f"programs-{name}", local=file, count=count, digest=digest, grader=NAME)


TASK = Task(
    name="programs",
    template="program",
    grader=NAME,
    extract="code",
    margin_pp=1.0,
    splits={
        "train": _split("train", 12, "sha256:489922e83351db279051e435ce89c4fa09178dcab37ce70e315fdd29ac8159da"),
        "test": _split("test", 8, "sha256:71280206ad9e289251b1b3ea25b3a0f24591efd45d3ce2f1a0cc1c207da7b6d5"),
    },
)
