"""Tasks, prompts, graders and metrics. No code here runs a model: the caller passes samples to an evaluation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evals.errors import DataMissingError, EvalError
    from evals.graders import grade
    from evals.grading import Grader, Verdict
    from evals.metrics import Metric
    from evals.metrics.success import pass_at_k
    from evals.prompts import Template, get_template
    from evals.tasks import get_task, task_names
    from evals.tasks.base import Problem, Task

_HOMES = {
    "DataMissingError": "evals.errors",
    "EvalError": "evals.errors",
    "Grader": "evals.grading",
    "Metric": "evals.metrics",
    "Problem": "evals.tasks.base",
    "Task": "evals.tasks.base",
    "Template": "evals.prompts",
    "Verdict": "evals.grading",
    "get_task": "evals.tasks",
    "get_template": "evals.prompts",
    "grade": "evals.graders",
    "pass_at_k": "evals.metrics.success",
    "task_names": "evals.tasks",
}

__all__ = [
    "DataMissingError",
    "EvalError",
    "Grader",
    "Metric",
    "Problem",
    "Task",
    "Template",
    "Verdict",
    "get_task",
    "get_template",
    "grade",
    "pass_at_k",
    "task_names",
]


# Names are imported on first use, so that importing this package costs nothing.
def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evals' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
