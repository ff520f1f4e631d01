"""The tasks that can be trained on and evaluated: Python modules with a `TASK`, YAML files, and reasoning-gym's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from evals.errors import UnknownNameError

if TYPE_CHECKING:
    from evals.tasks.base import Task

_FOLDER = Path(__file__).parent
_MODULES = {"arithmetic": "evals.tasks.arithmetic"}
GYM_PREFIX = "reasoning_gym:"
GYM_TASKS = f"{GYM_PREFIX}<name>[?option=value&...]"
"""How a task of the package reasoning-gym is named."""


def task_names() -> list[str]:
    """Names of the shipped tasks, sorted. Imports none of them."""
    return sorted([*_MODULES, *(path.stem for path in _FOLDER.glob("*.yaml"))])


def get_task(name: str) -> Task:
    """A shipped task by name; a task of one's own by the path of its YAML file (ending in `.yaml` or `.yml`), whose
    local files are looked for beside it; or one of reasoning-gym's, `reasoning_gym:<name>[?option=value&...]`.

    Raises UnknownNameError for an unknown name, EvalError for a faulty file, for faulty options, and where
    reasoning-gym is named but not installed.
    """
    from evals.tasks.declarative import load_task

    if name.startswith(GYM_PREFIX):
        from evals.tasks.reasoning_gym import load_gym_task

        return load_gym_task(name)
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        return load_task(path, data_folder=path.parent)
    if name not in task_names():
        raise UnknownNameError("task", name, [*task_names(), GYM_TASKS])
    if name in _MODULES:
        task: Task = importlib.import_module(_MODULES[name]).TASK
        return task
    return load_task(_FOLDER / f"{name}.yaml", data_folder=None)
