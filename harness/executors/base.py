"""What an executor is: it does jobs somewhere, several at once, and tells what becomes of them.

A job is a stage that cells share, or a cell. It travels as JSON, its paths are relative to the home, and its outcome is
in the records: an executor needs to know nothing of what a job does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from harness.config.run_spec import RunSpec
from harness.executors.slots import Slot, local_slots
from harness.plugins import Kind

JobState = Literal["done", "refused", "failed", "interrupted", "taken", "invalid", "damaged"]


@dataclass(frozen=True, eq=False)
class Job:
    """One piece of work.

    kind: `cell`, or the name of a stage. path: relative to the home; the cell's folder, or where the stage's result
    goes. spec: the cell's, or that of one of the cells that share the stage.
    plugins, folders: the user's modules that must be in use, and where they are looked for (`harness.plugins.use`).
    code: the digest of each module and template of the user's that the spec's numbers depend on; others are refused.
    inputs: what it reads in the home besides its own folder, as paths relative to the home.
    """

    kind: str
    path: str
    spec: RunSpec
    plugins: Sequence[str] = ()
    folders: Sequence[str] = ()
    code: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()

    @property
    def model(self) -> str:
        """What a worker loads for it, so that those of one model are best done where it is loaded."""
        return self.spec.model.model_dump_json(exclude={"lora"})

    def in_slot(self) -> Job:
        """The job as a process in a slot sees it, with one GPU whose name is `cuda`."""
        train = self.spec.train
        seen = train.model_copy(update={"device": train.device.partition(":")[0]})
        return replace(self, spec=self.spec.model_copy(update={"train": seen}))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": self.path,
            "spec": self.spec.model_dump(mode="json"),
            "plugins": list(self.plugins),
            "folders": list(self.folders),
            "code": dict(self.code),
            "inputs": list(self.inputs),
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
    """How a job ended, and why. output: what a worker that crashed had printed. where: the slot's name. again: whether
    it is worth another attempt, for it was not the job that failed but the place."""

    job: Job
    state: JobState
    reason: str | None
    output: str = ""
    where: str = ""
    again: bool = False

    @property
    def reason_and_place(self) -> str | None:
        """As people and records are told: a GPU or a machine that is broken shows in more than one cell."""
        return f"{self.reason} (on {self.where})" if self.reason and self.where else self.reason


class Place(Protocol):
    """One that does jobs one after another. model: that of its last job."""

    model: str | None


AnyPlace = TypeVar("AnyPlace", bound=Place)


def best_place(job: Job, free: Iterable[AnyPlace]) -> AnyPlace:
    """Of those that are free one that has the job's model, else one that has none yet, else the first."""
    return min(free, key=lambda place: (place.model != job.model, place.model is not None))


class Executor(Protocol):
    """Does jobs. One thread uses it; a job that ends frees its slot. What it tells of a job bears the very object that
    it was given."""

    @property
    def slots(self) -> int:
        """How many jobs it does at once, at present: machines may come and go."""

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

    make: (the slots for jobs, the home, the module that does jobs) -> the executor. `python -m <module> <home>` is a
    worker process (see `harness.run.worker`); an executor that does jobs in another way calls that module's `run_job`.
    slots: all that it has to offer, from what follows the name in `--executor name:given`. Asked before the plan is
    made, for a cell that leaves its device to the machine takes what the slots have. Raises RefusedError.
    """

    name: str
    summary: str
    make: Callable[[Sequence[Slot], Path, str], Executor]
    slots: Callable[[str], Sequence[Slot]] = local_slots


EXECUTORS: Kind[ExecutorKind] = Kind(
    "executor", lambda thing: isinstance(thing, ExecutorKind), "harness.executors", "bench ls executors"
)
