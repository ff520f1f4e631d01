"""The interface of executors. An executor runs jobs somewhere, several at once, and reports how they end.

A job is a cell, or a stage whose result cells share. It travels as JSON, and its paths are relative to the home. Its
results are in the records, so an executor need not know what a job does.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from harness.config.run_spec import RunSpec
from harness.executors.slots import Slot, local_slots
from harness.plugins import Kind

JobState = Literal["done", "refused", "failed", "interrupted", "away", "taken", "invalid", "damaged"]


@dataclass(frozen=True, eq=False)
class Job:
    """One piece of work."""

    kind: str
    """`cell`, or the name of a stage."""
    path: str
    """Relative to the home: the cell's folder, or the file of the stage's result."""
    spec: RunSpec
    """The spec of the cell, or of one of the cells that share the stage."""
    plugins: Sequence[str] = ()
    """The user's modules to load."""
    folders: Sequence[str] = ()
    """The folders to search for them (`harness.plugins.use`)."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests of the user's modules and templates that the numbers depend on; a job with other code is refused."""
    inputs: Sequence[str] = ()
    """What the job reads in the home outside its own folder, as paths relative to the home."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the job in the lease of its cell, so that its starter knows whether another process came after."""
    epoch: int = 0
    """The epoch of the cell's lease when the job was made."""

    @property
    def model(self) -> str:
        """A key of the model that a worker loads for the job. Jobs of one key go to the same worker if possible."""
        return self.spec.model.model_dump_json(exclude={"lora"})

    def in_slot(self) -> Job:
        """Return the job as seen inside a slot, where the only GPU is named `cuda`."""
        train = self.spec.train
        seen = train.model_copy(update={"device": train.device.partition(":")[0]})
        return replace(self, spec=self.spec.model_copy(update={"train": seen}))

    def to_json(self) -> dict[str, object]:
        """Return the job as a JSON document, for a worker."""
        return {**vars(self), "spec": self.spec.model_dump(mode="json")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Job:
        """Read a job that `to_json` wrote. The plug-ins that the spec names must be loaded."""
        return cls(**{**document, "spec": RunSpec.model_validate(document["spec"])})


class Event(TypedDict, total=False):
    """A report of a running job: its progress, a `remark`, or a heartbeat every few seconds.

    Progress has `phase`, `step`, `steps`, `done_frac` and, in a cell, `budget`. A heartbeat has `still_s`, the seconds
    since the Python code last moved on, and `at`, its position in the code.

    steps is 0 in a phase that does not move on by steps of training. budget: the name of the budget of which most is
    used; "" without one. done_frac: the used share of that budget, or of the steps if that is larger.
    """

    phase: str
    step: int
    steps: int
    done_frac: float
    budget: str
    reward: float | None
    tokens_per_s: float | None
    remark: str
    still_s: float
    at: str


@dataclass(frozen=True)
class Progress:
    """A report from a running job."""

    job: Job
    event: Event


@dataclass(frozen=True)
class Ended:
    """How a job ended, and why."""

    job: Job
    state: JobState
    reason: str | None
    output: str = ""
    """The output of a worker that crashed."""
    where: str = ""
    """The slot's name."""
    again: bool = False
    """Whether to retry, because the slot failed and not the job."""

    @property
    def reason_and_place(self) -> str | None:
        """The reason with the slot's name, which shows whether one GPU or machine makes several cells fail."""
        return f"{self.reason} (on {self.where})" if self.reason and self.where else self.reason


class Place(Protocol):
    """Something that runs one job at a time. model: that of its last job; None before the first."""

    model: str | None


AnyPlace = TypeVar("AnyPlace", bound=Place)


def best_place(job: Job, free: Iterable[AnyPlace]) -> AnyPlace:
    """Return the first free place that has loaded the job's model, else one that has loaded none, else the first."""
    return min(free, key=lambda place: (place.model != job.model, place.model is not None))


class Executor(Protocol):
    """Runs jobs.

    Only one thread uses it. A job that ends frees its slot. Events hold the same `Job` object that was passed to
    `start`.
    """

    @property
    def slots(self) -> int:
        """The number of jobs that it can run at once. It may change as machines come and go."""

    def start(self, job: Job) -> None:
        """Start a job; called only while a slot is free."""

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        """Return the events since the last call. Wait for one, but no longer than `timeout_s`."""

    def cancel(self, job: Job) -> None:
        """Stop a running job so that it can be continued. It ends `interrupted`, unless it was about to end anyway."""

    def kill(self, job: Job) -> None:
        """Kill a running job at once, with every process that it started. It ends `failed`."""

    def close(self) -> None:
        """Stop everything. Running jobs can be continued from their records."""


NAMED_AFTER_S = 60.0
"""After this time without progress, or half of `stalled_after_s` if that is less, the user is told where a job is."""
COUNTED_AT_ONCE_S = 10.0
"""The most time that counts between two looks at a job."""
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OF_OTHERS = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<")


@dataclass(eq=False)
class StallGuard:
    """Wraps an executor so that no job hangs for ever.

    A job without progress for `stalled_after_s` is killed and restarted once; the second time, it fails. Heartbeats are
    consumed here. Time in which this process itself was suspended does not count, since silent workers did not hang
    then. Ctrl-Z suspends it, and so does a scheduler that suspends all processes of a job.
    """

    executor: Executor
    stalled_after_s: float
    _awake_s: float = 0.0
    """The time that counts, up to now."""
    _looked_s: float = field(default_factory=lambda: time.monotonic())
    _moved_s: dict[Job, float] = field(default_factory=dict)
    """When each running job last made progress, in the time that counts."""
    _at: dict[Job, str] = field(default_factory=dict)
    """The last known position of each job that was reported as making no progress."""
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
            # Killed, a job ends `failed` like any other; `_ended` tells that end apart when it arrives.
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
        """Return the time that counts. A long gap between two calls means that this process was suspended."""
        now_s = time.monotonic()
        self._awake_s += min(now_s - self._looked_s, COUNTED_AT_ONCE_S)
        self._looked_s = now_s
        return self._awake_s

    def _heard(self, event: Progress | Ended) -> Iterator[Progress | Ended]:
        """Turn an event of the executor into what the caller is told."""
        job = event.job
        if isinstance(event, Ended):
            yield self._end_of(event)
        elif "still_s" not in event.event:
            self._moved_s[job] = self._now_s()
            yield event
        else:
            yield from self._sign_of_life(job, event.event["still_s"], event.event["at"])

    def _sign_of_life(self, job: Job, still_s: float, at: str) -> Iterator[Progress]:
        """Note a heartbeat, and report a job that has not moved for a while, once."""
        # `max`, because a report of progress may have arrived after the heartbeat was made.
        self._moved_s[job] = max(self._moved_s[job], self._now_s() - still_s)
        if still_s < min(NAMED_AFTER_S, self.stalled_after_s / 2):
            self._at.pop(job, None)
            return
        is_news = job not in self._at
        self._at[job] = at
        if is_news:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - still_s))
            name = Path(job.path).name or job.kind
            remark = f"{name} has made no progress for {still_s:.0f} s (since {since}); it is in {at}"
            yield Progress(job, {"remark": remark})

    def _end_of(self, ended: Ended) -> Ended:
        """Return the end of a job; for one that was killed here, with its position and whether to restart it."""
        job = ended.job
        was_ended = job in self._ended and ended.state == "failed"
        at = self._at.pop(job, None) or _last_place(ended.output)
        self._ended.discard(job)
        del self._moved_s[job]
        if not was_ended:
            return ended
        stalled = f"it made no progress for {self.stalled_after_s:.0f} s (--stalled-after)"
        where = f"it was in {at}" if at else "its position is unknown, because it sent no heartbeat"
        if job not in self._again:
            self._again.add(job)
            return replace(ended, reason=f"{stalled}; {where}", again=True)
        return replace(ended, reason=f"{stalled}, again after a restart; {where}", again=False)


def _last_place(output: str) -> str | None:
    """Return a process's position in words, from a stack that faulthandler printed; None without one.

    Native code, such as that of regular expressions, may hold the GIL, so that no thread can send a heartbeat. The main
    thread is printed last. Its position is the innermost function outside of Python's library and installed packages.
    """
    _, timeout, stacks = output.rpartition("Timeout (")
    frames = [*_FRAME.finditer(stacks.rpartition("(most recent call first)")[2])] if timeout else []
    ours = (frame for frame in frames if not _OF_OTHERS.search(frame["file"]))
    frame = next(ours, frames[0] if frames else None)
    return None if frame is None else f"{frame['function']} of {frame['file']}, line {frame['line']}"


@dataclass(frozen=True)
class ExecutorKind:
    """An executor, by the name that `--executor` takes."""

    name: str
    summary: str
    make: Callable[[Sequence[Slot], Path, str], Executor]
    """(the slots to use, the home, the worker module) -> the executor. `python -m <module> <home>` starts a worker
    process (see `harness.run.worker`). An executor without worker processes calls that module's `run_job`."""
    slots: Callable[[str], Sequence[Slot]] = local_slots
    """Lists all slots; its argument is what follows the name in `--executor name:given`. It is called before the plan
    is made, because the slots decide what `train.device: auto` means. Raises RefusedError."""


EXECUTORS: Kind[ExecutorKind] = Kind(
    "executor", lambda thing: isinstance(thing, ExecutorKind), "harness.executors", "bench ls executors"
)
