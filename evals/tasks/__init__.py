"""The tasks that can be trained on and evaluated: Python modules with a `TASK`, and YAML files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from evals.errors import UnknownNameError

if TYPE_CHECKING:
    from evals.tasks.base import Task

_FOLDER = Path(__file__).parent
_MODULES = {"arithmetic": "evals.tasks.arithmetic"}


def task_names() -> list[str]:
    """Names of the shipped tasks, sorted. Imports none of them."""
    return sorted([*_MODULES, *(path.stem for path in _FOLDER.glob("*.yaml"))])


def get_task(name: str) -> Task:
    """A shipped task by name, or a task of one's own by the path of its YAML file (ending in `.yaml` or `.yml`), whose
    local files are looked for beside it.

    Raises UnknownNameError for an unknown name, EvalError for a faulty file.
    """
    from evals.tasks.declarative import load_task

    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        return load_task(path, data_folder=path.parent)
    if name not in task_names():
        raise UnknownNameError("task", name, task_names())
    if name in _MODULES:
        task: Task = importlib.import_module(_MODULES[name]).TASK
        return task
    return load_task(_FOLDER / f"{name}.yaml", data_folder=None)
