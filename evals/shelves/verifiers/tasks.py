"""Tasksets of the package verifiers, played turn by turn.

Their names include options:

    verifiers:alphabet-sort
    verifiers:my_taskset?taskset.min_turns=2&taskset.task.similarity_power=2&agent.max_turns=3
    verifiers:my_taskset?size=500&right_from=0.8

The name is that of a module or installed package that exports a `Taskset`, and an `Env` if it needs its own. A user's
module is searched for in the same folders as plug-ins. Dotted options are those of the package's `[env]`; their values
are JSON, or bare text. `size` is the most training problems, and `right_from` the smallest reward of a correct
completion. The first problems of the taskset are the test split, and the next ones the training split.

The environment's own `run` decides what the model reads, and the task's own rewards decide what it earns. A worker
process plays the episodes (see _player.py). After each turn, it replays the episode from the beginning with everything
that the model has said, so that no state of an environment has to be kept. The reward of a turn is what the turn adds
to the reward of an episode that ends there. So the rewards of all turns add up to the reward of the episode, however
many turns it has.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

from evals.errors import EvalError
from evals.grading import OWN, Reason
from evals.grading.worker_process import WorkerLostError, WorkerProcess
from evals.tasks.base import Environment, Problem, Task, TaskFamily, with_options, written_options
from evals.tasks.environment import Reply
from harness import plugins
from harness.plugins import UserModule

TEST_PROBLEMS, TRAIN_PROBLEMS = 256, 2048
# If a taskset has fewer problems than needed, at most this share of them is for the test.
_MOST_TEST_FRAC = 0.25
_RECIPE_VERSION = 1
_PACKAGE_VERSION = "0.4"
_INSTALL = "pip install -e '.[verifiers]'"
PREFIX = "verifiers:"
_PROGRAM = Path(__file__).with_name("_player.py")
_MEMORY_BYTES = 8 << 30
_CPU_LIMIT_S = 10.0
"""The CPU limit for one episode, or for opening an environment."""
_LOAD_LIMIT_S = 1200.0
"""The wall-clock limit for making or fetching all problems."""
_NO_REFERENCE = "(no reference: the taskset's rewards decide)"
# The size of the cache of states. A state that was dropped is played again.
_REMEMBERED_EPISODES = 50_000


def load_verifiers_task(name: str) -> Task:
    """Load the task named `verifiers:<taskset>[?option=value&...]`.

    Raises EvalError if the package is not installed, for an unknown taskset or option, or for an environment that bench
    cannot play. Such an environment has several agents, tools or a sandbox, is judged by another model, or reacts
    differently to the same words.
    """
    taskset, _, written = name.removeprefix(PREFIX).partition("?")
    _require_package()
    return _load(taskset, written, _Place.of(_module_of(taskset)))


class _Place(NamedTuple):
    """The folder from which a user's module is imported, or None if it is installed, and the digest of its content."""

    folder: str | None = None
    digest: str = ""

    @classmethod
    def of(cls, module: UserModule | None) -> _Place:
        """Return the place of a module; None stands for a taskset that verifiers ships."""
        if module is None:
            return cls()
        file = module.files[module.name]
        # The folder to import from contains the module's file or the package's folder.
        folder = str(file.parents[1 if file.name == "__init__.py" else 0].resolve())
        return cls(None if module.installed else folder, module.digest)


@lru_cache
def _load(taskset: str, written: str, place: _Place) -> Task:
    """Load a task, cached. A module that was edited or moved is loaded again."""
    options = _options(f"{PREFIX}{taskset}", written)
    size, right_from = options.pop("size", TRAIN_PROBLEMS), options.pop("right_from", 1.0)
    if not isinstance(size, int) or size < 1:
        raise EvalError("evals.shelves.verifiers.size_not_valid", prefix=PREFIX, taskset=taskset, size=size)
    if not isinstance(right_from, int | float) or not math.isfinite(right_from):
        raise EvalError(
            "evals.shelves.verifiers.right_from_not_valid", prefix=PREFIX, taskset=taskset, right_from=right_from
        )
    played = _Played(taskset, json.dumps(options, sort_keys=True), place)
    opened, stream = played.before_training("open"), _Stream(played, size)
    module = _module_of(taskset)
    own = {"size": (size, TRAIN_PROBLEMS), "right_from": (right_from, 1)}
    given = options | {option: value for option, (value, default) in own.items() if value != default}
    return Task(
        name=with_options(f"{PREFIX}{taskset}", given),
        template="chat",
        grader=OWN,
        extract="whole",
        margin_pp=1.0,
        splits={name: _Split(stream, name, float(right_from)) for name in ("train", "test")},
        environment=Environment(_reply, opened["max_turns"], _RECIPE_VERSION),
        grades_all_turns=True,
        modules=() if module is None else (module,),
    )


def _reply(problem: Problem, said: Sequence[str]) -> Reply:
    """Return the environment's reply to the last turn.

    If the environment fails on what was said, the conversation ends, and its verdict is `crash`.
    """
    episode = problem.own_comparison
    assert isinstance(episode, Episode)
    now, before = episode.after(said), episode.after(said[:-1]) if len(said) > 1 else _NOTHING
    if now.failed is not None:
        return Reply("", done=True)
    return Reply(now.asked or "", done=now.asked is None, reward=now.reward - before.reward)


@dataclass(frozen=True)
class _State:
    """The state of an episode after some turns."""

    asked: str | None = None
    """The environment's next text; None if the episode has ended."""
    reward: float = 0.0
    """The total reward of all turns."""
    failed: Reason | None = None
    """Why `asked` and `reward` are unknown, or None."""


_NOTHING = _State()
PROCESS = WorkerProcess(
    "verifiers",
    f"it needs verifiers: run `{sys.executable} -c 'import verifiers.v1'` to see what is missing",
    _MEMORY_BYTES,
    _CPU_LIMIT_S,
    program=_PROGRAM,
)
"""The worker that plays environments."""
PROCESS.keep()
_imported: dict[str, _Place] = {}
"""Maps the name of a taskset to the module that the worker has imported for it."""


@dataclass(frozen=True)
class Episode:
    """The episodes of one task. Calling it with everything that was said, as JSON, returns whether that is correct."""

    played: _Played
    data: str
    """The task's data, as JSON."""
    right_from: float

    def after(self, said: Sequence[str]) -> _State:
        """Return the state after these turns. Raises EvalError if the environment turns out to be unplayable."""
        return _state(self.played, self.data, tuple(said))

    def __call__(self, extracted: str) -> Reason:
        state = self.after(json.loads(extracted))
        return state.failed or ("match" if state.reward >= self.right_from else "mismatch")


@lru_cache(maxsize=_REMEMBERED_EPISODES)
def _state(played: _Played, data: str, said: tuple[str, ...]) -> _State:
    """Return the state after these turns. Cached, because each turn also needs the state before it."""
    try:
        found = played.ask("play", data=json.loads(data), said=said)
    except WorkerLostError as lost:
        return _State(failed=lost.reason)
    return _State(failed="crash") if "failed" in found else _State(found["asked"], found["reward"])


@dataclass(frozen=True)
class _Played:
    """An environment, played by the worker."""

    taskset: str
    options: str
    """The package's own options, as JSON."""
    place: _Place

    def ask(self, what: str, wall_limit_s: float | None = None, **request: Any) -> dict[str, Any]:
        """Return the reply of _player.py to a request.

        Raises EvalError for an environment that cannot be played, and WorkerLostError if the worker ends without an
        answer.
        """
        if _imported.setdefault(self.taskset, self.place) != self.place:
            PROCESS.close()  # The worker has imported the module as it was before the edit.
            _imported.clear()
        own = {"taskset": self.taskset, "options": json.loads(self.options), "folder": self.place.folder}
        reply: dict[str, Any] = json.loads(PROCESS.reply({"do": what, **own, **request}, wall_limit_s))
        if "refused" in reply:
            raise EvalError(
                "evals.shelves.verifiers.environment_not_playable",
                prefix=PREFIX,
                taskset=self.taskset,
                reason=reply["refused"],
            )
        return reply

    def before_training(self, what: str, wall_limit_s: float | None = None, **request: Any) -> dict[str, Any]:
        """Ask like `ask`, but raise EvalError if the worker is lost."""
        try:
            return self.ask(what, wall_limit_s, **request)
        except WorkerLostError as lost:
            took = "took too long" if lost.reason == "timeout" else "ended the process"
            raise EvalError(
                "evals.shelves.verifiers.environment_worker_lost",
                prefix=PREFIX,
                taskset=self.taskset,
                outcome=took,
                request=what,
            ) from lost


@dataclass(frozen=True)
class _Stream:
    """The first tasks of a taskset: those of the test split, then at most `size` for training."""

    played: _Played
    size: int

    @cached_property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks that _player.py loaded, each with its number. Raises EvalError if there are fewer than two."""
        most = TEST_PROBLEMS + self.size
        tasks: list[dict[str, Any]] = self.played.before_training("load", _LOAD_LIMIT_S, most=most)["tasks"]
        if len(tasks) < 2:
            raise EvalError(
                "evals.shelves.verifiers.too_few_different_tasks",
                prefix=PREFIX,
                taskset=self.played.taskset,
                n_tasks=len(tasks),
            )
        return [{"number": number, **task} for number, task in enumerate(tasks)]

    def split(self, name: str) -> list[dict[str, Any]]:
        """Return the tasks of the split `test` or `train`."""
        tested, all_are_here = TEST_PROBLEMS, len(self.tasks) < TEST_PROBLEMS + self.size
        if all_are_here:
            tested = min(tested, max(1, int(_MOST_TEST_FRAC * len(self.tasks))))
        return self.tasks[:tested] if name == "test" else self.tasks[tested:]


@dataclass(frozen=True)
class _Split:
    stream: _Stream
    name: str
    right_from: float

    @cached_property
    def fingerprint(self) -> str:
        """The package's version, and a digest of the options, the user's module and the problems."""
        played = self.stream.played
        content = json.dumps([played.place.digest, played.options, self.right_from, self.stream.split(self.name)])
        digest = hashlib.blake2b(content.encode(), digest_size=20).hexdigest()
        return f"verifiers=={metadata.version('verifiers')}:v{_RECIPE_VERSION}:{played.taskset}:{self.name}:{digest}"

    def load(self) -> Sequence[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> list[Problem]:
        played = self.stream.played
        return [
            Problem(
                id=f"{played.taskset}-{task['number']:06d}",
                problem=task["prompt"],
                answer=str(task["data"].get("answer", _NO_REFERENCE)),
                own_comparison=Episode(played, json.dumps(task["data"]), self.right_from),
            )
            for task in self.stream.split(self.name)
        ]


def _require_package() -> None:
    """Raise EvalError unless the supported version of the package is installed."""
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError as error:
        raise EvalError("evals.shelves.verifiers.package_not_installed", prefix=PREFIX, install=_INSTALL) from error
    if not version.startswith(f"{_PACKAGE_VERSION}."):
        raise EvalError(
            "evals.shelves.verifiers.package_version_differs",
            prefix=PREFIX,
            required_version=_PACKAGE_VERSION,
            version=version,
            install=_INSTALL,
        )


def _module_of(taskset: str) -> UserModule | None:
    """Return the module that verifiers would import for this name, or None for a taskset that it ships.

    Raises RefusedError if there is no such module.
    """
    # The package derives the module's name from an id such as `owner/name@version` in the same way.
    name = taskset.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
    package = util.find_spec("verifiers")
    if package is not None and package.origin is not None:
        shipped = Path(package.origin).parent / "v1" / "tasksets"
        if name.isidentifier() and (shipped / name).is_dir():
            return None
    module = plugins.source_of(name, f"{PREFIX}{taskset}")
    plugins.require_trusted(module, f"{PREFIX}{taskset}")
    return module


def _options(task: str, written: str) -> dict[str, Any]:
    """Return the options by name. Each value is parsed as JSON if possible, else kept as text."""
    found: dict[str, Any] = {}
    for name, text in written_options(task, written).items():
        if name == "taskset.id":
            raise EvalError("evals.shelves.verifiers.taskset_as_option", task=task)
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


FAMILY = TaskFamily(
    PREFIX,
    f"{PREFIX}<taskset>[?option=value&...]",
    "tasksets of verifiers, with turns; needs pip install -e '.[verifiers]'; grader own; splits train, test",
    load_verifiers_task,
)
