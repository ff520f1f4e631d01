"""What an executor is: it does jobs somewhere, several at once, and tells what becomes of them.

A job is a stage that cells share, or a cell. It travels as JSON, its paths are relative to the home, and its outcome is
in the records: an executor needs to know nothing of what a job does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """What a running job tells: `phase`, `step`, `steps`, `done_frac` and more.

    Or, every few seconds, a sign of life: `still_s`, for how long its Python has not moved on, and `at`, where it is.
    """

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
    """A free one that has the job's model, else one that has none yet, else the first."""
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

    def kill(self, job: Job) -> None:
        """End a running job at once, with every process that it started: it ends `failed`."""

    def close(self) -> None:
        """Stop everything. Running jobs leave their records ready to be continued."""


NAMED_AFTER_S = 60.0
"""The place where a job stands still is named after this time, or after half of that for which it may."""
COUNTED_AT_ONCE_S = 10.0
"""What counts, at most, of the time between two looks at a job."""
_NOWHERE = "a place that is not known: it gave no sign of life"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OF_OTHERS = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<")


@dataclass(eq=False)
class StallGuard:
    """An executor whose jobs do not hang for ever: one that stands still for `stalled_after_s` is ended, and started
    once more; after the second time it is failed. Signs of life end here.

    Time in which this process did not run itself does not count: after Ctrl-Z, or where a scheduler suspends a job with
    all its processes, the workers have not been heard, but do not hang.
    """

    executor: Executor
    stalled_after_s: float
    _awake_s: float = 0.0
    """The time that counts."""
    _looked_s: float = field(default_factory=lambda: time.monotonic())
    _moved_s: dict[Job, float] = field(default_factory=dict)
    """When each running job moved on last, in the time that counts."""
    _at: dict[Job, str] = field(default_factory=dict)
    """Where it was when it was heard last, of those that stand still and were named."""
    _ended: set[Job] = field(default_factory=set)
    _again: set[Job] = field(default_factory=set)

    @property
    def slots(self) -> int:
        return self.executor.slots

    def start(self, job: Job) -> None:
        self._moved_s[job] = self._now_s()
        self.executor.start(job)

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        happened = [told for event in self.executor.wait(timeout_s) for told in self._heard(event)]
        now_s = self._now_s()
        for job, moved_s in self._moved_s.items():
            if now_s - moved_s >= self.stalled_after_s and job not in self._ended:
                self._ended.add(job)
                self.executor.kill(job)
        return happened

    def cancel(self, job: Job) -> None:
        self.executor.cancel(job)

    def kill(self, job: Job) -> None:
        self.executor.kill(job)

    def close(self) -> None:
        self.executor.close()

    def _now_s(self) -> float:
        now_s = time.monotonic()
        self._awake_s += min(now_s - self._looked_s, COUNTED_AT_ONCE_S)
        self._looked_s = now_s
        return self._awake_s

    def _heard(self, event: Progress | Ended) -> Iterator[Progress | Ended]:
        job = event.job
        if isinstance(event, Ended):
            yield self._end_of(event)
        elif "still_s" not in event.event:
            self._moved_s[job] = self._now_s()
            yield event
        else:
            yield from self._sign_of_life(job, **event.event)

    def _sign_of_life(self, job: Job, still_s: float, at: str) -> Iterator[Progress]:
        self._moved_s[job] = max(self._moved_s[job], self._now_s() - still_s)
        if still_s < min(NAMED_AFTER_S, self.stalled_after_s / 2):
            self._at.pop(job, None)
            return
        is_news = job not in self._at
        self._at[job] = at
        if is_news:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - still_s))
            name = Path(job.path).name or job.kind
            yield Progress(job, {"remark": f"{name} has stood still for {still_s:.0f} s, since {since}, in {at}"})

    def _end_of(self, ended: Ended) -> Ended:
        job = ended.job
        was_ended = job in self._ended and ended.state == "failed"
        place = self._at.pop(job, None) or _last_place(ended.output) or _NOWHERE
        self._ended.discard(job)
        del self._moved_s[job]
        if not was_ended:
            return ended
        stood = f"it stood still for {self.stalled_after_s:.0f} s (--stalled-after)"
        if job not in self._again:
            self._again.add(job)
            return replace(ended, reason=f"{stood}, in {place}", again=True)
        return replace(
            ended, reason=f"{stood}, and did so again when it was started once more; it was in {place}", again=False
        )


def _last_place(output: str) -> str | None:
    """Where a process was that faulthandler has looked at, from what it printed: native code, such as that of regular
    expressions, lets no other thread tell. Its main thread is the last; of that the innermost function that is neither
    Python's own nor an installed package's, in words. None if nothing was printed."""
    _, timeout, stacks = output.rpartition("Timeout (")
    frames = [*_FRAME.finditer(stacks.rpartition("(most recent call first)")[2])] if timeout else []
    ours = (frame for frame in frames if not _OF_OTHERS.search(frame["file"]))
    frame = next(ours, frames[0] if frames else None)
    return None if frame is None else f"{frame['function']} of {frame['file']}, line {frame['line']}"


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
