"""The interface of executors. An executor runs several jobs at once somewhere, and reports how they end.

A job is a cell, or a stage whose result cells share. It is passed as JSON, and its paths are relative to the home. Its
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
    kind: str
    """`cell`, or the name of a stage."""
    path: str
    """The cell's folder or the file of the stage's result, relative to the home."""
    spec: RunSpec
    """The spec of the cell, or of one of the cells that share the stage."""
    plugins: Sequence[str] = ()
    folders: Sequence[str] = ()
    """The folders in which the modules are searched for (`harness.plugins.use`)."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests of the user's modules, templates and data that affect the results. If they differ, the job is refused."""
    inputs: Sequence[str] = ()
    """Paths, relative to the home, of what the job reads outside its own folder."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """An id for the lease of the job's cell. By it, the starter knows whether another process has taken the cell since.
    """
    epoch: int = 0
    """The epoch of the cell's lease when the job was created."""

    @property
    def model(self) -> str:
        """A key of the model that a worker loads for the job. If possible, jobs with one key go to one worker."""
        return self.spec.model.model_dump_json(exclude={"lora"})

    def in_slot(self) -> Job:
        """Return the job as seen inside a slot, where the only GPU is named `cuda`."""
        train = self.spec.train
        seen = train.model_copy(update={"device": train.device.partition(":")[0]})
        return replace(self, spec=self.spec.model_copy(update={"train": seen}))

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "spec": self.spec.model_dump(mode="json")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Job:
        """Return the job that `to_json` wrote. The plug-ins that its spec names must be loaded."""
        return cls(**{**document, "spec": RunSpec.model_validate(document["spec"])})


class Event(TypedDict, total=False):
    """A report from a running job: its progress, a `remark`, or a heartbeat every few seconds.

    Progress has `phase`, `step`, `steps`, `done_frac` and, in a cell, `budget`. A heartbeat has `still_s`, the seconds
    since the Python code last advanced, and `at`, its position in the code.

    steps: 0 in a phase that does not consist of training steps.
    budget: the name of the budget that is closest to being used up; "" if there is none.
    done_frac: the used share of that budget, or of the steps if that is larger.
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
    job: Job
    event: Event


@dataclass(frozen=True)
class Ended:
    """The end of a job: its state and the reason."""

    job: Job
    state: JobState
    reason: str | None
    output: str = ""
    """The output of the worker, if it crashed."""
    where: str = ""
    again: bool = False
    """True if the job is to be retried, because not the job but the slot failed."""

    @property
    def reason_and_place(self) -> str | None:
        """The reason, with the name of the slot. This shows whether one GPU or machine makes several cells fail."""
        return f"{self.reason} (on {self.where})" if self.reason and self.where else self.reason


class Place(Protocol):
    """Something that runs one job at a time. model: the key of the model of its last job; None before its first job."""

    model: str | None


AnyPlace = TypeVar("AnyPlace", bound=Place)


def best_place(job: Job, free: Iterable[AnyPlace]) -> AnyPlace:
    """Return the first free place that has loaded the job's model, or else one without a model, or else the first."""
    return min(free, key=lambda place: (place.model != job.model, place.model is not None))


class Executor(Protocol):
    """Runs jobs.

    Only one thread uses it. When a job ends, its slot becomes free. Events contain the same `Job` object that was
    passed to `start`.
    """

    @property
    def slots(self) -> int:
        """The number of jobs that it can run at once. It may change as machines come and go."""

    def start(self, job: Job) -> None:
        """Start a job; called only while a slot is free."""

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        """Return the events since the last call. If there are none, wait for one, at most `timeout_s`."""

    def cancel(self, job: Job) -> None:
        """Stop a running job so that it can be continued. It ends as `interrupted`, unless it just ended anyway."""

    def kill(self, job: Job) -> None:
        """Kill a running job at once, with all its child processes. It ends as `failed`."""

    def close(self) -> None:
        """Stop everything. Running jobs can be continued later from their records."""


NAMED_AFTER_S = 60.0
"""If a job makes no progress for this time, or half of `stalled_after_s` if that is less, its position is reported."""
COUNTED_AT_ONCE_S = 10.0
"""The most time that counts between two checks of a job."""
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OF_OTHERS = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<")


@dataclass(eq=False)
class StallGuard:
    """Wraps an executor so that no job hangs forever.

    A job without progress for `stalled_after_s` is killed and restarted once. The second time, it fails. Heartbeats are
    consumed here and not passed on.

    Time in which this process was suspended does not count, because the silence of workers then means nothing. Ctrl-Z
    suspends it, and so may a scheduler that suspends all processes of a job.
    """

    executor: Executor
    stalled_after_s: float
    _awake_s: float = 0.0
    """The time that counts, summed up to now."""
    _looked_s: float = field(default_factory=lambda: time.monotonic())
    _moved_s: dict[Job, float] = field(default_factory=dict)
    """When each running job last made progress, on the clock of the time that counts."""
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
            # A killed job ends as `failed`, like any other. By `_ended`, its end is recognised when it arrives.
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
        """Yield the events to pass on to the caller for an event of the executor."""
        job = event.job
        if isinstance(event, Ended):
            yield self._end_of(event)
        elif "still_s" not in event.event:
            self._moved_s[job] = self._now_s()
            yield event
        else:
            yield from self._sign_of_life(job, event.event["still_s"], event.event["at"])

    def _sign_of_life(self, job: Job, still_s: float, at: str) -> Iterator[Progress]:
        """Process a heartbeat. If the job has not advanced for a while, report this once."""
        # `max` is needed, because a report of progress may have arrived after the heartbeat was sent.
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
        """Return the end of a job. If the job was killed here, add its position and whether to restart it."""
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
    """Return a process's position in words, from a stack that faulthandler printed, or None if there is no stack.

    Native code, such as that of regular expressions, may hold the GIL, so that no thread can send a heartbeat. The main
    thread is printed last. Its position is the innermost function outside Python's library and installed packages.
    """
    _, timeout, stacks = output.rpartition("Timeout (")
    frames = [*_FRAME.finditer(stacks.rpartition("(most recent call first)")[2])] if timeout else []
    ours = (frame for frame in frames if not _OF_OTHERS.search(frame["file"]))
    frame = next(ours, frames[0] if frames else None)
    return None if frame is None else f"{frame['function']} of {frame['file']}, line {frame['line']}"


@dataclass(frozen=True)
class ExecutorKind:
    name: str
    summary: str
    make: Callable[[Sequence[Slot], Path, str], Executor]
    """make(the slots to use, the home, the worker module) -> the executor. `python -m <module> <home>` starts a worker
    process (see `harness.run.worker`). An executor without worker processes calls that module's `run_job`.
    """
    slots: Callable[[str], Sequence[Slot]] = local_slots
    """slots(given) -> all slots. given is the text after the name in `--executor name:given`. It is called before the
    plan is made, because the slots decide what `train.device: auto` means. Raises RefusedError.
    """


EXECUTORS: Kind[ExecutorKind] = Kind(
    "executor", lambda thing: isinstance(thing, ExecutorKind), "harness.executors", "bench ls executors"
)
