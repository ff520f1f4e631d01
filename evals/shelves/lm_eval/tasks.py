"""Tasks of lm-eval as held-out tasks of a training sweep, which give side effects of training with seeds and intervals.

    lm_eval:gsm8k_local     a task of lm-eval's, or of the folder lm_eval_tasks next to this file
    lm_eval:mine.yaml       a task file of your own

Prompts, few-shot examples, stop strings, filters and the metric are lm-eval's. `eval` sets the sampling, as for all
tasks: temperature, length, samples per problem. A sample is correct if lm-eval's first metric, after its first filter,
is 1. Each sample is therefore 0 or 1, and arms are compared in pairs.

A task of the output type `multiple_choice` or `loglikelihood` samples nothing. Its sample is the choice that the model
finds most likely. Choices are compared by the first of the task's metrics that decides whether a choice is correct (see
`evals.choices`).

lm-eval is imported when such a task is first named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from evals.errors import EvalError
from evals.grading import OWN, Reason
from evals.shelves.lm_eval.adapter import run_lm_eval
from evals.tasks.base import Problem, Task, TaskFamily
from evals.yaml_file import ENDINGS, YamlError, compose_yaml, read_text
from harness import plugins

if TYPE_CHECKING:
    from evals.shelves.lm_eval.documents import LmEvalDocuments

PREFIX = "lm_eval:"
# Stands in for an empty target, because a record needs some text.
_NO_REFERENCE = "(no reference: lm-eval's metric decides)"


def load_lm_eval_task(name: str) -> Task:
    """Load the task named `lm_eval:<name>` or `lm_eval:<file>.yaml`.

    Raises EvalError if lm-eval is not installed, or if the task is unknown, cannot be loaded, or has no metric for a
    single answer.
    """
    given = name.removeprefix(PREFIX)
    if not given.endswith(ENDINGS):
        return _load(given, None)
    path = plugins.user_file(given)
    if plugins.is_for_records() and not plugins.user_code.is_own(path):
        plugins.user_code.require_all(f"{name}, which may call functions,", path)  # Its functions are in no ledger.
    return _load(_declared_name(path), path.parent.resolve())


@lru_cache
def _load(name: str, folder: Path | None) -> Task:
    from evals.shelves.lm_eval.documents import LmEvalDocuments

    documents = LmEvalDocuments.load(name, folder)
    return Task(
        name=f"{PREFIX}{name}",
        template="plain",
        grader=OWN,
        extract="whole",
        margin_pp=1.0,
        splits={"test": _Documents(documents)},
        asks_itself=True,
        stop=documents.stop,
        gives_choices=documents.comparison is not None,
    )


def _declared_name(path: Path) -> str:
    """Return the `task:` of a task file, without evaluating its `!function` tags, which only lm-eval can read."""
    try:
        document = compose_yaml(read_text(path))
    except FileNotFoundError as error:
        raise EvalError("evals.shelves.lm_eval.task_file_missing", prefix=PREFIX, path=path) from error
    except YamlError as error:
        raise EvalError("evals.shelves.lm_eval.in_task_file", prefix=PREFIX, path=path, error=error) from error
    pairs = document.value if isinstance(document, yaml.MappingNode) else []
    names = [value.value for key, value in pairs if key.value == "task" and isinstance(value, yaml.ScalarNode)]
    if not names:
        raise EvalError("evals.shelves.lm_eval.task_file_without_name", prefix=PREFIX, path=path)
    return str(names[0])


@dataclass(frozen=True)
class _Documents:
    """The documents of a task, as problems."""

    source: LmEvalDocuments

    @cached_property
    def fingerprint(self) -> str:
        """lm-eval's version, and a digest of the task file and of all prompts, choices and references."""
        problems = [[one.problem, one.answer] for one in self.load()]
        said = json.dumps([self.source.declared, problems], sort_keys=True, default=str)
        return f"lm_eval=={self.source.version}:{hashlib.blake2b(said.encode(), digest_size=20).hexdigest()}"

    def load(self) -> Sequence[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> list[Problem]:
        return [
            Problem(
                id=f"{self.source.name}-{number:06d}",
                problem=self.source.asked(number),
                answer=self.source.target(number) or _NO_REFERENCE,
                own_comparison=_Metric(self.source, number),
                choices=self.source.choices(number),
            )
            for number in range(len(self.source))
        ]


@dataclass(frozen=True)
class _Metric:
    """lm-eval's metric for one document, as a comparison."""

    source: LmEvalDocuments
    number: int

    def __call__(self, answer: str) -> Reason:
        return "match" if self.source.score(self.number, answer) >= 1 else "mismatch"


FAMILY = TaskFamily(
    PREFIX,
    f"{PREFIX}<name or file>",
    "tasks of lm-eval, written or multiple choice; needs pip install -e '.[lm-eval]'; grader own; split test",
    load_lm_eval_task,
    run_lm_eval,
)
