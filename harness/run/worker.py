"""A worker: imports everything heavy once, then runs jobs one at a time. `python -m harness.run.worker HOME` is one.

The process reads a job a line on stdin, as JSON. Events go out as JSON lines on what was stdout; whatever a library
prints goes to stderr. When stdin closes the parent is gone, and a running job is interrupted. SIGTERM interrupts too;
the job leaves its records ready to be continued. `null` in the place of a job interrupts the running one, and the
worker waits for the next.

A cell of several processes (`train.processes`) is run by workers of this worker's, which have torchrun's variables in
their environment: see `harness.processes`.
"""

from __future__ import annotations

import gc
import json
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from harness import plugins
from harness.config.hashing import code_digests, data_digests, own_templates, user_code
from harness.errors import RefusedError
from harness.executors.base import Ended, Job, JobState
from harness.executors.local import STOP_WITHIN_S, LocalPool
from harness.executors.slots import slots_of_processes
from harness.records import CellRecord
from harness.records.files import DamagedRecordError, is_disk_full
from harness.records.lease import Lease, LeaseLostError, LeaseTakenError, hold_in_turn
from harness.run.loop import DISK_FULL, POLL_S, CodeChangedError, Interrupted

if TYPE_CHECKING:
    from harness.models.start import StartingPoint
    from harness.run.stages import Stage, StageContext

Tell = Callable[[dict[str, Any]], None]
_NOT_A_RECORD = (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


def run_job(job: Job, home: Path, start: StartingPoint, tell: Tell) -> tuple[JobState, str | None]:
    """Run a job; returns how it ended and why. tell: receives the fields of `harness.executors.base.Progress`.

    Our own bugs pass through, and so does `Interrupted`.
    """
    from evals.errors import EvalError
    from harness.engines.base import EngineMismatchError
    from harness.run.cell_job import run_cell, serve_cell
    from harness.run.stages import CELL, StageContext, find_stage

    path = home / job.path
    try:
        if job.kind == CELL and _needs_processes(job, home):
            return run_in_processes(job, home, tell)
        if job.kind == CELL and int(os.environ.get("RANK", 0)) > 0:
            serve_cell(job.spec, home, start)
        elif job.kind == CELL:
            run_cell(job.spec, home, path, start, tell, lambda: require_code(job))
        else:
            require_code(job)
            stage = find_stage(job.kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(stage, path, StageContext(job.spec, home, start, stage.phase, tell))
            require_code(job)
    except (LeaseTakenError, LeaseLostError) as error:
        return "taken", str(error)
    except CodeChangedError as error:
        return "invalid", str(error)
    except EngineMismatchError as error:
        return "invalid", str(error)
    except DamagedRecordError as error:
        return "damaged", str(error)
    except (RefusedError, EvalError) as error:
        return "refused", str(error)
    except OSError as error:
        if is_disk_full(error):
            return "interrupted", DISK_FULL
        if job.kind == CELL and isinstance(error, _NOT_A_RECORD) and str(path) in str(error.filename):
            return "damaged", (
                f"{error.filename}: cannot be read or written ({error.strerror}). Restore it, or move {path} away and "
                "run the sweep again."
            )
        raise
    return "done", None


def _needs_processes(job: Job, home: Path) -> bool:
    """Whether a cell is to be trained by several processes, of which this is none."""
    several = job.spec.train.processes > 1 and not job.spec.checkpoint
    return several and "RANK" not in os.environ and CellRecord.at(home / job.path).lacks == "training"


def run_in_processes(job: Job, home: Path, tell: Tell) -> tuple[JobState, str | None]:
    """Run a cell in processes of its own. It ends as its first process says, or as another that fails before; then all
    are stopped."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # This process holds the port for as long as the others need it.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    slots = slots_of_processes(job.spec.train.device, job.spec.train.processes, store.port)
    pool = LocalPool(slots, home, "harness.run.worker")
    jobs = [replace(job) for _ in slots]
    first = jobs[0]
    try:
        for one in jobs:
            pool.start(one)
        try:
            ended = _first_to_end(pool, first, tell)
        except Interrupted:
            # The others must live until the first has stopped where it can be continued.
            pool.cancel(first)
            with suppress(TimeoutError):
                _first_to_end(pool, first, tell, STOP_WITHIN_S)
            raise
    finally:
        pool.close()
    if ended.output:
        with CellRecord.at(home / job.path).log.open("a", encoding="utf-8") as log:
            log.write(ended.output)
    return ended.state, ended.reason if ended.job is first else ended.reason_and_place


def _first_to_end(pool: LocalPool, first: Job, tell: Tell, within_s: float = math.inf) -> Ended:
    """How the first job ended, or another that did not succeed before. TimeoutError if neither has in this time."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        for event in pool.wait(POLL_S):
            if isinstance(event, Ended):
                if event.job is first or event.state != "done":
                    return event
            elif event.job is first:
                tell(event.event)
    raise TimeoutError


def _make(stage: Stage, path: Path, context: StageContext) -> None:
    """Make a stage's result, or wait while another process, here or on another machine, makes it."""
    from harness.run.stages import lease_folder

    if not stage.key(context.spec):  # it keeps nothing that could be shared
        stage.make(path, context)
        return

    def wait(owner: str) -> None:
        replace(context, phase=f"waiting for {owner}: {stage.phase}").tell_progress(0, 0)

    while not path.exists():
        with suppress(LeaseLostError), hold_in_turn(lease_folder(path), wait) as lease:

            def tell(event: dict[str, Any], lease: Lease = lease) -> None:
                if lease.is_lost:
                    lease.require()
                context.tell(event)

            if not path.exists():
                stage.make(path, replace(context, tell=tell))
            return


def require_code(job: Job) -> None:
    """Raise CodeChangedError unless the user's code, prompt templates, data and model are those of the plan, and the
    code still lies on the disk: a result is filed under what made it."""
    modules = user_code(job.spec)
    runs = code_digests(job.spec)
    files = {name: path for module in modules for name, path in module.files.items()} | own_templates(job.spec)
    changed: list[Path | str] = [path for name, path in files.items() if runs[name] != job.code.get(name)]
    changed += [name for name, now in data_digests(job.spec).items() if job.code.get(name, now) != now]
    changed = changed or [path for module in modules for path in module.changed_files()]
    if changed:
        raise CodeChangedError(list(dict.fromkeys(changed)))


class Cancelled(Interrupted):
    """The running job is to stop; the worker lives on."""


class _State:
    """Whether a job is running, for the signal handler. Not an Event: the interrupted code may hold its lock."""

    on_a_job = False


def main() -> None:
    home = Path(sys.argv[1])
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C on a terminal reaches the whole process group; the parent decides what it means for the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGUSR1, _cancel)

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    try:
        _work(jobs, home, tell)
    except (Interrupted, BrokenPipeError):
        os._exit(0)  # not sys.exit: events may be a broken pipe, and flushing it at exit would fail


def _work(jobs: queue.SimpleQueue[dict[str, Any] | None], home: Path, tell: Tell) -> None:
    # All that takes seconds to import, while there may be no job yet. Most of what is imported stays for good: looking
    # for garbage in it, now and at each later collection, would take a fifth of that time.
    gc.disable()
    import harness.run.cell_job  # noqa: F401
    from harness.models.start import StartingPoint

    gc.freeze()
    gc.enable()
    start = StartingPoint()
    while (document := jobs.get()) is not None:
        try:
            _State.on_a_job = True
            state, reason = _do(document, home, start, lambda event: tell({"event": "progress", **event}))
            _State.on_a_job = False
        except Cancelled:
            state, reason = "interrupted", "cancelled"
        tell({"event": "ended", "state": state, "reason": reason})


def _do(document: dict[str, Any], home: Path, start: StartingPoint, tell: Tell) -> tuple[JobState, str | None]:
    try:
        plugins.use(document["plugins"], [Path(folder) for folder in document["folders"]])
        job = Job.from_json(document).in_slot()
    except RefusedError as error:  # a plug-in that was there when the job was planned
        return "invalid", str(error)
    return run_job(job, home, start, tell)


def _read_jobs(jobs: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        if (document := json.loads(line)) is None:
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            jobs.put(document)
    jobs.put(None)
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted


def _cancel(signum: int, frame: FrameType | None) -> None:
    if _State.on_a_job:  # else the job ended before the signal arrived
        _State.on_a_job = False
        raise Cancelled


if __name__ == "__main__":
    main()
