"""Our verdicts on completions that lm-eval has judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

import pytest

from evals.lm_eval_results import LmEvalResult
from evals.tasks.base import Generated, Problem, Task
from tests.evals.scripted import draw_of, graded_row


@dataclass(frozen=True)
class Comparison:
    """A metric of lm-eval under one of its filters, and how we grade to compare with it."""

    task: str
    filter: str
    metric: str
    extract: str
    grader: str

    def __str__(self) -> str:
        return f"{self.task}-{self.filter}-{self.metric}-{self.extract}-{self.grader}"


IDENTICAL = (
    Comparison("gsm8k", "strict-match", "exact_match", "lm_eval_gsm8k_strict", "exact"),
    Comparison("gsm8k", "flexible-extract", "exact_match", "lm_eval_gsm8k_flexible", "exact"),
    Comparison("aime24", "none", "exact_match", "lm_eval_aime", "exact"),
)
"""Under these our verdicts are lm-eval's, whatever the completion."""


def minerva_runs() -> bool:
    """Whether lm-eval's minerva tasks can be imported: they accept no other antlr."""
    return version("antlr4-python3-runtime").startswith("4.11")


def skip_unless_it_runs(task: str) -> None:
    if task == "minerva_math500" and not minerva_runs():
        pytest.skip("lm-eval's minerva tasks need antlr4-python3-runtime 4.11: make .venv-lm-eval")


def verdicts(
    comparison: Comparison, task_name: str, result: LmEvalResult, rows: Iterable[Mapping[str, str]]
) -> list[tuple[bool, bool]]:
    """(lm-eval's, ours) of each document. rows: with `problem` and `answer`, in the order of lm-eval's documents."""
    problems = [Problem(str(number), row["problem"], row["answer"]) for number, row in enumerate(rows)]
    task = Task(
        name=task_name,
        template="plain",
        grader=comparison.grader,
        extract=comparison.extract,
        margin_pp=1.0,
        splits={"test": Generated(lambda: problems, version=1)},
    )
    judged = [row for row in result.rows if (row["task"], row["filter"]) == (task_name, comparison.filter)]
    pairs = []
    for row in judged:
        (text,) = row["completions"]
        graded = graded_row(task, draw_of(problems[row["doc_id"]], 0, row["prompt"]), text, 0, False)
        pairs.append((bool(row["metrics"][comparison.metric]), graded["correct"]))
    return pairs
