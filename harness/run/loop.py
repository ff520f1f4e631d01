"""The loop of every run. It starts jobs as slots become free, records how they end, and reports to an observer.

Jobs come from a `JobSource`: a sweep has a list of cells, a search gets jobs from Optuna.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harness.errors import BenchError, RefusedError
from harness.executors.base import Ended, Event, Executor, Job
from harness.records import CellRecord
from harness.records.lease import hold_after
from harness.records.rows import CellState

POLL_S = 1.0
"""The longest wait before the loop asks for a new job again."""
MOST_ATTEMPTS = 3
"""The most starts of one job, if it ends because its slot failed."""

KILLED = "its process died; the next run continues it"
DISK_FULL = "the disk is full; once there is room, the next run continues it"
INTERRUPTED = "interrupted; the next run continues it"
STOPPING = "stopping: running cells write a checkpoint, which takes 10 s at most; Ctrl-C again ends them at once"


class StoppedError(BenchError):
    """The run stopped early, for a reason that would affect every other cell too."""


class CodeChangedError(Exception):
    """The user's code or data changed while a job that depends on them was running."""

    def __init__(self, files: Sequence[Path | str]) -> None:
        super().__init__(
            f"{', '.join(map(str, files))} changed after the run was planned, and a result is filed under the code "
            "and data that made it. `bench run` plans anew, with both as they are now"
        )


class Observer(Protocol):
    """Follows a run. Cells are named `<arm>-s<seed>`."""

    def planned(self, total: int | None, done: int) -> None:
        """Learn the number of cells and of finished cells. total: None if a budget, not a number, ends the run."""

    def used(self, budget: Mapping[str, float]) -> None:
        """Learn the used share of each limit, by the limit's name. It exceeds 1 if the limit was overrun."""

    def remark(self, sentence: str) -> None: ...
    def stage(self, name: str, event: Event | None) -> None:
        """Learn the progress of a shared stage, e.g. the cold start. event: None if the stage has ended."""

    def progress(self, name: str, event: Event) -> None: ...
    def elsewhere(self, fractions: Mapping[str, float]) -> None:
        """Learn the fraction done, in [0, 1], of each cell that another process is running."""

    def ended(self, name: str, state: str, reason: str | None) -> None: ...


class JobSource(Protocol):
    def next(self) -> Job | None:
        """Return the next job for a free slot, or None if there is none at present."""

    def is_over(self) -> bool:
        """Return whether there will be no more jobs. Called when none is running."""

    def progress(self, job: Job, event: Event) -> bool:
        """Take note of a running job's progress. Return whether to cancel the job."""

    def ended(self, ended: Ended) -> None: ...


def run_jobs(executor: Executor, source: JobSource) -> None:
    """Run all jobs of a source, and return when the last has ended.

    The source's methods may raise an exception to stop the run. If a job ends because its slot failed (`Ended.again`),
    it is started again, up to `MOST_ATTEMPTS` times in all.
    """
    under_way = 0
    lost: list[Job] = []
    attempts: Counter[Job] = Counter()
    while True:
        while under_way < executor.slots and (job := lost.pop(0) if lost else source.next()) is not None:
            executor.start(job)
            attempts[job] += 1
            under_way += 1
        if under_way == 0 and not lost and source.is_over():
            return
        for event in executor.wait(POLL_S):
            if isinstance(event, Ended):
                under_way -= 1
                if event.again and attempts[event.job] < MOST_ATTEMPTS:
                    lost.append(event.job)
                    name = Path(event.job.path).name or event.job.kind
                    remark = f"{name}: {event.reason_and_place}; restarting it"
                    source.progress(event.job, {"remark": remark})
                else:
                    source.ended(event)
            elif source.progress(event.job, event.event):
                executor.cancel(event.job)


@contextmanager
def closing(executor: Executor, observer: Observer) -> Iterator[Executor]:
    """Close the executor at the end of the block.

    After Ctrl-C, its jobs get time to write a checkpoint.
    """
    try:
        yield executor
    except KeyboardInterrupt:
        observer.remark(STOPPING)
        raise
    finally:
        executor.close()


class StageJobs:
    """The jobs of stages, whose results cells share. The first job that does not succeed stops the run."""

    def __init__(self, jobs: Sequence[Job], home: Path, observer: Observer) -> None:
        self._waiting, self._home, self._observer = list(jobs), home, observer

    def next(self) -> Job | None:
        return self._waiting.pop(0) if self._waiting else None

    def is_over(self) -> bool:
        return not self._waiting

    def progress(self, job: Job, event: Event) -> bool:
        if remark := event.pop("remark", None):
            self._observer.remark(remark)
        if event:
            self._observer.stage(stage_name(job), event)
        return False

    def ended(self, ended: Ended) -> None:
        self._observer.stage(stage_name(ended.job), None)
        require_made(ended, self._home)


def stage_name(job: Job) -> str:
    return job.kind.replace("_", " ")


def require_made(ended: Ended, home: Path) -> None:
    """Raise RefusedError or StoppedError if a stage did not succeed."""
    if ended.state == "refused":
        raise RefusedError(ended.reason or "")
    if ended.state != "done":
        raise StoppedError(f"{stage_name(ended.job)}: {ended.reason}\n{ended.output}".rstrip())
    # An executor on another machine may write to a home that this process cannot see.
    if not (home / ended.job.path).exists():
        raise StoppedError("run.output_not_there", stage=stage_name(ended.job), home=home / ended.job.path)


def record_end(ended: Ended, cell: CellRecord, is_retried: bool = False) -> Ended:
    """Record how a cell's job ended, if the job could not do so itself.

    Returns the end. Its state is "taken" if another process has run the cell since then, which can happen if this
    process was suspended for long.
    is_retried: record a failed cell as pending.
    """
    job, is_ours = ended.job, True
    match ended.state:
        case "refused" | "failed":
            if is_retried:
                is_ours = record_state(job, cell, "pending", None)
            else:
                is_ours = record_state(job, cell, "failed", ended.reason_and_place)
        case "invalid":
            is_ours = record_state(job, cell, "invalid", ended.reason)
        # A cell that is already damaged or done has recorded its own state.
        case "damaged" if cell.state not in ("damaged", "done"):
            is_ours = record_state(job, cell, "damaged", ended.reason)
    if ended.output and is_ours:
        cell.add_to_log(ended.output)
    return ended if is_ours else replace(ended, state="taken", reason="another process has run it since")


def record_state(job: Job, cell: CellRecord, state: CellState, reason: str | None) -> bool:
    """Write the state of a cell whose job has ended. Return False if another process has run the cell since."""
    with hold_after(cell.path, job.id, job.epoch) as is_ours:
        if is_ours and not cell.is_done:
            cell.write_status(state, reason=reason)
    return is_ours
