"""The tasks for training and evaluation: shipped modules and YAML files, plug-ins, the user's files, other packages.

A prefix of a task's name fixes how the model thinks, e.g. `direct:` not at all. See `evals.tasks.modes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from evals.errors import EvalError
from evals.tasks.base import Task, TaskFamily
from evals.tasks.rows import Fields, HubDataset, LocalFile, TaskRows
from evals.yaml_file import ENDINGS, read_yaml
from harness import plugins
from harness.plugins import Kind
from harness.settings import Settings

if TYPE_CHECKING:
    from evals.lm_eval_results import LmEvalResult

MODE_PREFIX = re.compile(r"(?:direct|think(?P<budget>\d+)):")
"""The prefix in the name of a task in one mode of thinking."""


class _Split(Settings):
    file: str | None = None
    fields: Fields = Fields()
    hub: HubDataset | None = None
    rows: int | None = Field(None, gt=0)
    digest: str | None = Field(None, pattern=r"^sha256:[0-9a-f]{64}$")
    digest_of: Literal["file", "hub"] | None = None

    def source(self, name: str, folder: Path | None, grader: str | None) -> TaskRows:
        return TaskRows(
            name=name,
            local=LocalFile(self.file, folder, self.fields) if self.file else None,
            hub=self.hub,
            count=self.rows,
            digest=self.digest,
            digest_of=self.digest_of or ("file" if self.file else "hub"),
            grader=grader,
        )


class _TaskFile(Settings):
    name: str
    template: str = "boxed"
    grader: str | None = "math"
    extract: str = "chain"
    margin_pp: float = Field(1.0, ge=0)
    splits: dict[str, _Split] = Field(min_length=1)


def _read_task(path: Path, data_folder: Path | None = None) -> Task:
    """Read the task that a YAML file declares.

    data_folder: the folder of its local files; None for $BENCH_DATA.
    If the file says `grader: null`, its rows need no answers.
    """
    file = read_yaml(path, _TaskFile, "task")
    # A template file next to the task file takes precedence over a path relative to the current folder.
    beside = path.parent / file.template
    return Task(
        name=file.name,
        template=str(beside) if file.template.endswith(ENDINGS) and beside.is_file() else file.template,
        grader=file.grader,
        extract=file.extract,
        margin_pp=file.margin_pp,
        splits={
            name: split.source(f"{file.name}-{name}", data_folder, file.grader) for name, split in file.splits.items()
        },
    )


TASKS: Kind[Task] = Kind(
    "task",
    lambda thing: isinstance(thing, Task),
    "evals.tasks",
    "bench ls tasks",
    from_yaml=_read_task,
    summary_of=lambda task: f"grader {task.grader}; splits {', '.join(task.splits)}",
    besides={
        "direct:<task>": "any of our tasks, the answer asked for at once; its template must have modes; split test",
        "think<N>:<task>": "any of our tasks, thinking cut after N tokens; split test",
    },
)


FAMILIES: Kind[TaskFamily] = Kind(
    "family of tasks",
    lambda thing: isinstance(thing, TaskFamily),
    "evals.tasks",
    "bench ls tasks",
    name_of=lambda family: family.form,
)


def task_names() -> list[str]:
    """Return the names of the shipped tasks and of plug-ins' tasks, sorted."""
    return sorted(TASKS.names())


def get_task(name: str) -> Task:
    """Return the task with this name.

    A name refers to a shipped task, a plug-in's task, or a task of another package (`TaskFamily`). A user's task is
    named by the path of its YAML file (see `plugins.user_file`), and its local files are looked up next to that file. A
    mode may precede the name (see `evals.tasks.modes`).

    Raises UnknownNameError for an unknown name. Raises EvalError for a faulty file, faulty options, a package that is
    not installed, or an environment that cannot be played.
    """
    if mode := MODE_PREFIX.match(name):
        from evals.tasks.modes import in_mode

        own = name[mode.end() :]
        if MODE_PREFIX.match(own):
            raise EvalError("evals.two_modes_named", name=name)
        return in_mode(get_task(own), mode[0], mode["budget"])
    for family in FAMILIES.all().values():
        if name.startswith(family.prefix):
            return family.load(name)
    if not name.endswith(ENDINGS):
        return _named(name)
    path = plugins.user_file(name)
    task = _read_task(path, data_folder=path.parent)
    task.require_known_names()
    return task


@plugins.cached
def _named(name: str) -> Task:
    task = TASKS.find(name)
    task.require_known_names()
    return task


def without_mode(name: str) -> str:
    """Return the task's name without the mode."""
    return MODE_PREFIX.sub("", name, count=1)


def runner_of(prefix: str) -> Callable[..., LmEvalResult]:
    """Return the function that runs a family's tasks in their own package's way. Raises EvalError if there is none."""
    runners = (one.run_itself for one in FAMILIES.all().values() if one.prefix == prefix)
    if (runner := next(runners, None)) is None:
        raise EvalError("evals.family_without_runner", prefix=prefix)
    return runner


def without_family(name: str) -> str:
    """Return the task's own name or file, without the mode and the prefix of a family."""
    own = without_mode(name)
    return next((own.removeprefix(one.prefix) for one in FAMILIES.all().values() if own.startswith(one.prefix)), own)


def task_source(name: str) -> str | None:
    """Return the digest of the plug-in that provides a task; None for other tasks, which their rows identify."""
    name = without_mode(name)
    source = TASKS.source(name) if name in TASKS.names() else None
    return None if source is None else source.digest
