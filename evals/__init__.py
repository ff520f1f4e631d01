"""Tasks, prompts, graders and estimators. Nothing here runs a model: an evaluation is handed its samples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evals.errors import DataMissingError, EvalError, UnknownNameError
    from evals.estimators import pass_at_k
    from evals.grading import Verdict, grade
    from evals.prompts import Template, get_template
    from evals.tasks import get_task, task_names
    from evals.tasks.base import Problem, Task

_HOMES = {
    "DataMissingError": "evals.errors",
    "EvalError": "evals.errors",
    "Problem": "evals.tasks.base",
    "Task": "evals.tasks.base",
    "Template": "evals.prompts",
    "UnknownNameError": "evals.errors",
    "Verdict": "evals.grading",
    "get_task": "evals.tasks",
    "get_template": "evals.prompts",
    "grade": "evals.grading",
    "pass_at_k": "evals.estimators",
    "task_names": "evals.tasks",
}

__all__ = [
    "DataMissingError",
    "EvalError",
    "Problem",
    "Task",
    "Template",
    "UnknownNameError",
    "Verdict",
    "get_task",
    "get_template",
    "grade",
    "pass_at_k",
    "task_names",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evals' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
