"""Loading tasks of lm-eval by name, with their documents, or reporting why they are not available.

Like `documents` and `adapter`, it depends on the interfaces of lm-eval 0.4.13. Version 0.5 changes them: filters become
scorers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evals.errors import EvalError
from harness.errors import RefusedError, nearest

OWN_TASKS = Path(__file__).with_name("lm_eval_tasks")
"""The folder of this project's task files, over rows in $BENCH_DATA. Every run includes it."""
GENERATE = "generate_until"
"""The output type of tasks in which the model writes the answer."""
_INSTALL = "pip install -e '.[lm-eval]'"


def installed() -> Any:
    """Return the module lm_eval. Raises EvalError if it is not installed."""
    try:
        import lm_eval
    except ModuleNotFoundError as error:
        # A missing dependency of lm-eval is a different fault.
        if error.name != "lm_eval":
            raise
        raise EvalError("evals.shelves.lm_eval.lm_eval_not_installed", install=_INSTALL) from error
    return lm_eval


def task_manager(names: Sequence[str], include_path: Path | None) -> Any:
    """Return a TaskManager that knows all of `names`, searching as few folders as possible.

    Raises EvalError if `include_path` is not a folder, or for an unknown name.
    """
    from lm_eval.tasks import TaskManager

    if include_path is not None and not include_path.is_dir():
        raise EvalError("evals.shelves.lm_eval.include_path_not_folder", include_path=include_path)
    folders = [OWN_TASKS] if include_path is None else [OWN_TASKS, include_path]
    few = TaskManager(include_path=[*_shipped_folders(names), *folders], include_defaults=False)
    # This works for plain tasks only: a group's members and a tag's tasks may be in any folder.
    if set(names) <= set(few.all_subtasks):
        return few
    manager = TaskManager(include_path=folders)
    for name in names:
        if name not in manager.task_index:
            raise EvalError(
                "evals.shelves.lm_eval.unknown_task",
                task=name,
                nearest=nearest(name, manager.all_tasks),
                own_tasks=OWN_TASKS.name,
            )
    return manager


def _shipped_folders(names: Sequence[str]) -> list[Path]:
    """Return the folders of lm-eval that have a file `<name>.yaml` which declares the task with that name."""
    import lm_eval

    wanted = {
        f"{name}.yaml": re.compile(rf"^task:\s*['\"]?{re.escape(name)}['\"]?\s*$", re.MULTILINE) for name in names
    }
    return [
        Path(folder)
        for folder, _, files in os.walk(Path(lm_eval.__file__).parent / "tasks")
        if any(wanted[file].search(Path(folder, file).read_text("utf-8")) for file in wanted.keys() & set(files))
    ]


def load_tasks(names: Sequence[str], manager: Any, output_types: Sequence[str]) -> Iterator[Any]:
    """Yield the tasks behind names, groups and tags, with their documents.

    Raises EvalError for a task that cannot be loaded, has another output type, or cannot be run here.
    """
    from datasets.exceptions import DatasetsError

    # Check this before fetching any document. Only tasks that are Python classes do not declare their output type.
    for name in names:
        declared = (manager.task_index[name].cfg or {}).get("output_type", "generate_until")
        require_output_type(name, declared, output_types)
    for name in dict.fromkeys(names):
        try:
            loaded = manager.load([name])["tasks"]
        except RefusedError:
            raise
        except (OSError, ValueError, TypeError, LookupError, ImportError, AssertionError, DatasetsError) as error:
            raise EvalError(
                "evals.shelves.lm_eval.task_not_loadable", task=name, error=error, remedy=_remedy(str(error))
            ) from error
        for task_name, task in loaded.items():
            require_output_type(task_name, task.OUTPUT_TYPE, output_types)
            if getattr(task, "MULTIMODAL", False):
                raise EvalError("evals.shelves.lm_eval.task_not_text_only", task=task_name)
            if getattr(task, "UNSAFE_CODE", False):
                raise EvalError("evals.shelves.lm_eval.task_runs_code", task=task_name)
            yield task


def _remedy(fault: str) -> str:
    if "antlr4" in fault:
        return (
            "Give it an environment of its own, `make .venv-lm-eval`: the grader `math` of this package reads less "
            "(no percentages) with antlr 4.11"
        )
    return (
        f"If a package is missing: {_INSTALL}, and what lm-eval asks for. If its documents are: allow access to "
        f"the hub (HF_HUB_OFFLINE unset), or take a task over local rows from {OWN_TASKS.name}"
    )


def require_output_type(task: str, output_type: str, known: Sequence[str]) -> None:
    """Raise EvalError if a task's output type is not in `known`."""
    if output_type in known:
        return
    if known == (GENERATE,):
        raise EvalError(
            "evals.shelves.lm_eval.task_scored_by_likelihood", task=task, output_type=output_type, required=GENERATE
        )
    raise EvalError(
        "evals.shelves.lm_eval.output_type_without_verdict",
        task=task,
        output_type=output_type,
        known=" or ".join(known),
    )
