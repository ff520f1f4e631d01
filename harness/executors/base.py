"""What an executor is: it does jobs somewhere, several at once, and tells what becomes of them.

A job is a stage that cells share, or a cell. It travels as JSON, its paths are relative to the home, and its outcome is
in the records: an executor needs to know nothing of what a job does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from harness.config.run_spec import RunSpec
from harness.plugins import Kind

JobState = Literal["done", "refused", "failed", "interrupted", "taken", "invalid", "damaged"]


@dataclass(frozen=True, eq=False)
class Job:
    """One piece of work.

    kind: `cell`, or the name of a stage. path: relative to the home; the cell's folder, or where the stage's result
    goes. spec: the cell's, or that of one of the cells that share the stage.
    plugins, folders: the user's modules that must be in use, and where they are looked for (`harness.plugins.use`).
    code: the digest of each module and template of the user's that the spec's numbers depend on; others are refused.
    """

    kind: str
    path: str
    spec: RunSpec
    plugins: Sequence[str] = ()
    folders: Sequence[str] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": self.path,
            "spec": self.spec.model_dump(mode="json"),
            "plugins": list(self.plugins),
            "folders": list(self.folders),
            "code": dict(self.code),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Job:
        """What `to_json` gave. The plug-ins that the spec names must be in use."""
        return cls(**{**document, "spec": RunSpec.model_validate(document["spec"])})


@dataclass(frozen=True)
class Progress:
    """What a running job tells: `phase`, `step`, `steps`, `done_frac` and more."""

    job: Job
    event: dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a job ended, and why. output: what a worker that crashed had printed."""

    job: Job
    state: JobState
    reason: str | None
    output: str = ""


class Executor(Protocol):
    """Does jobs. One thread uses it; a job that ends frees its slot. What it tells of a job bears the very object that
    it was given."""

    slots: int
    """How many jobs it does at once."""

    def start(self, job: Job) -> None:
        """Do a job; called only while a slot is free."""

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        """What has happened since the last call; waits for something to happen, but no longer than this."""

    def cancel(self, job: Job) -> None:
        """Stop a running job where it can be continued: it ends `interrupted`, unless it is about to end anyway."""

    def close(self) -> None:
        """Stop everything. Running jobs leave their records ready to be continued."""


@dataclass(frozen=True)
class ExecutorKind:
    """An executor by the name that `--executor` gives.

    make: (jobs at once, the home, the module that does jobs) -> the executor. `python -m <module> <home>` is a worker
    process (see `harness.run.worker`); an executor that does jobs in another way calls that module's `do`.
    """

    name: str
    summary: str
    make: Callable[[int, Path, str], Executor]


EXECUTORS: Kind[ExecutorKind] = Kind(
    "executor", lambda thing: isinstance(thing, ExecutorKind), "harness.executors", "bench ls executors"
)
