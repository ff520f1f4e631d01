"""A worker process: it imports everything heavy once, then runs jobs one at a time.

It is started as `python -m harness.run.worker HOME`. It reads jobs from stdin, one JSON document per line, and writes
events as JSON lines to its original stdout. Everything that libraries print goes to stderr. Every few seconds it sends
a heartbeat, with `still_s` and `at` (see `_watch`).

SIGTERM ends the worker. If a cell is running, it first writes a checkpoint of its last step, if it can do so within
`STOP_WITHIN_S`. The same happens when stdin closes, because then the parent has ended. The line `null` instead of a
job stops the running job in the same way, and the worker waits for the next job.

For a cell of several processes (`train.processes`), this worker starts further workers, with torchrun's variables in
their environment: see `harness.processes`.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from harness import OUR_PACKAGES, plugins
from harness.config.hashing import code_digests, data_digests, own_templates, user_code
from harness.errors import RefusedError
from harness.executors.base import COUNTED_AT_ONCE_S, NAMED_AFTER_S, Ended, Event, Job, JobState
from harness.executors.local import CANCEL, STOP_WITHIN_S, LocalPool
from harness.executors.slots import slots_of_processes
from harness.processes import Interrupted, Stopping
from harness.records import CellRecord
from harness.records.fence import LeaseLostError
from harness.records.files import DamagedRecordError, is_disk_full
from harness.records.lease import Lease, LeaseTakenError, hold_in_turn
from harness.run.loop import DISK_FULL, INTERRUPTED, POLL_S, CodeChangedError
from harness.run.stages import CELL
from harness.secrets import json_text, redact_output

if TYPE_CHECKING:
    from harness.models.start import StartingPoint
    from harness.run.stages import Stage, StageContext

Tell = Callable[[Event], None]
# It also accepts the event of a job's end, which is not an `Event`.
Write = Callable[[Mapping[str, object]], None]
UPDATE_WITHIN_S = 6.0
"""How long an update may continue after the worker was asked to stop."""
END_WITHIN_S = 1.0
"""How long a cell's processes may take to end after they are killed."""
LOOK_EVERY_S, BEAT_S, SILENT_AFTER_S = 1.0, 5.0, 9.0
_OUR_FOLDERS = tuple(f"{Path(__file__).parents[2] / name}{os.sep}" for name in OUR_PACKAGES)
_NOT_A_RECORD = (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


def run_job(
    job: Job, home: Path, start: StartingPoint, tell: Tell, stopping: Stopping | None = None
) -> tuple[JobState, str | None]:
    """Run a job. Return how it ended and the reason.

    tell: called with the event of a `harness.executors.base.Progress`.
    stopping: how others ask a cell to stop; see `harness.run.cell.CellRun`.
    Raises Interrupted. Unexpected exceptions, which are bugs in bench, are not caught.
    """
    from harness.sampling.services import services_in

    telling = _Telling(job, tell)
    with services_in(home, job.spec.reward.allow_code, telling.of_waiting):
        return _run_job(job, home, start, telling.of_progress, stopping)


def _run_job(
    job: Job, home: Path, start: StartingPoint, tell: Tell, stopping: Stopping | None
) -> tuple[JobState, str | None]:
    from evals.errors import EvalError
    from harness.engines.base import EngineMismatchError
    from harness.run.cell_job import run_cell, serve_cell
    from harness.run.stages import StageContext, find_stage
    from harness.sampling.services import ServerAwayError

    path = home / job.path
    try:
        # This worker only starts and follows the other processes. It neither loads the model nor takes the lease.
        if job.kind == CELL and _needs_processes(job, home):
            return run_in_processes(job, home, tell)
        if job.kind == CELL and int(os.environ.get("RANK", 0)) > 0:
            serve_cell(job.spec, home, start, stopping)
        elif job.kind == CELL:
            run_cell(job.spec, home, path, start, tell, lambda: require_code(job), stopping, job.id)
        else:
            # Code is checked before and after, because it may change while the stage runs.
            require_code(job)
            stage = find_stage(job.kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(stage, path, StageContext(job.spec, home, start, stage.phase, tell))
            require_code(job)
    except (LeaseTakenError, LeaseLostError) as error:
        return "taken", str(error)
    except ServerAwayError as error:
        return "away", str(error)
    except (CodeChangedError, EngineMismatchError) as error:
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
    """Return whether the job needs several processes to train a cell, and this process is not yet one of them."""
    several = job.spec.train.processes > 1 and not job.spec.checkpoint
    return several and not _is_one_of_several() and CellRecord.at(home / job.path).lacks == "training"


def _is_one_of_several() -> bool:
    """Return whether this worker is one of several processes that train a cell together."""
    return "RANK" in os.environ


def run_in_processes(job: Job, home: Path, tell: Tell) -> tuple[JobState, str | None]:
    """Run a cell in several worker processes. Return how it ended and the reason.

    It ends when rank 0 ends or another rank fails. Then all processes are stopped.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # The other processes meet at this port, so this process keeps it open.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    slots = slots_of_processes(job.spec.train.device, job.spec.train.processes, store.port)
    pool = LocalPool(slots, home, "harness.run.worker", end_with_us=True)
    # The jobs are copies, so that `is` distinguishes the job of rank 0.
    jobs = [replace(job) for _ in slots]
    first = jobs[0]
    _Now.is_watched_elsewhere = True
    try:
        for one in jobs:
            pool.start(one)
        try:
            ended = _first_to_end(pool, first, tell)
        except Interrupted:
            # The other processes must live until rank 0 has written its checkpoint.
            for one in jobs:
                pool.cancel(one)
            with suppress(TimeoutError):
                _first_to_end(pool, first, tell, STOP_WITHIN_S - END_WITHIN_S)
            raise
    finally:
        for one in jobs:
            # The other processes only wait for rank 0 and have nothing to save.
            pool.kill(one)
        pool.close()
        _Now.is_watched_elsewhere = False
    if ended.output:
        CellRecord.at(home / job.path).add_to_log(ended.output)
    return ended.state, ended.reason if ended.job is first else ended.reason_and_place


def _first_to_end(pool: LocalPool, first: Job, tell: Tell, within_s: float = math.inf) -> Ended:
    """Return the end of rank 0's job, or of another job that fails before it.

    Raises TimeoutError if neither happens in time.
    """
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
    """Make a stage's result, or wait until another process, perhaps on another machine, has made it."""
    from harness.run.stages import lease_folder

    # A stage without a key stores no result, so there is nothing to share.
    if not stage.key(context.spec):
        stage.make(path, context)
        return

    def wait(owner: str) -> None:
        replace(context, phase=f"waiting for {owner}: {stage.phase}").tell_progress(0, 0)

    # If the lease is lost while the result is being made, try again: another process may have made it by then.
    while not path.exists():
        with suppress(LeaseLostError), hold_in_turn(lease_folder(path), wait) as lease:

            def tell(event: Event, lease: Lease = lease) -> None:
                if lease.is_lost:
                    lease.require()
                context.tell(event)

            if not path.exists():
                stage.make(path, replace(context, tell=tell))
            return


def require_code(job: Job) -> None:
    """Raise CodeChangedError unless the job's code, data and model are still those of the plan.

    The check covers the user's code, prompt templates, data and model, because a result is filed under the hash of
    these.
    """
    modules = user_code(job.spec)
    runs = code_digests(job.spec)
    files = {name: path for module in modules for name, path in module.files.items()} | own_templates(job.spec)
    # A judge's file determines rewards, as a prompt template determines prompts.
    files |= {judge.name: plugins.user_file(judge.name) for judge in job.spec.judges}
    changed: list[Path | str] = [path for name, path in files.items() if runs[name] != job.code.get(name)]
    changed += [name for name, now in data_digests(job.spec).items() if job.code.get(name, now) != now]
    changed = changed or [path for module in modules for path in module.changed_files()]
    if changed:
        raise CodeChangedError(list(dict.fromkeys(changed)))


class _Now:
    """The current job, for signal handlers and `_watch`.

    It has no lock, because the interrupted code might hold the lock.
    """

    stopping: Stopping | None = None
    """Stops the running job on request; None if no job is running."""
    cell: CellRecord | None = None
    """The running cell, whose log is written to; None if no cell is running."""
    is_watched_elsewhere = False
    """True if other processes run the job. If so, their heartbeats are passed on."""


def main() -> None:
    home = Path(sys.argv[1])
    # Events are written to a copy of stdout. Descriptor 1 then becomes stderr, so that anything a library prints, even
    # from C, does not break the protocol.
    events, lock = os.dup(sys.stdout.fileno()), threading.Lock()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    redact_output()
    # Ctrl-C in a terminal reaches the whole process group. The parent decides what happens to the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A scheduler may send SIGTERM to all processes of a cell. Only rank 0 acts on it, and the others follow rank 0.
    signal.signal(signal.SIGTERM, _stop if int(os.environ.get("RANK", 0)) == 0 else signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _cancel)

    def tell(event: Mapping[str, object]) -> None:
        line = memoryview((json_text(event) + "\n").encode())
        # A broken pipe is ignored here, because the end of stdin shows that the parent has ended.
        with lock, suppress(BrokenPipeError):
            while line:
                line = line[os.write(events, line) :]

    jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    threading.Thread(target=_watch, args=(threading.get_ident(), tell), daemon=True).start()
    with suppress(Interrupted):
        _work(jobs, home, tell)
    # sys.exit is not used, because it would wait for library threads that may still run.
    os._exit(0)


def _work(jobs: queue.SimpleQueue[str | None], home: Path, tell: Write) -> None:
    # Import everything slow now, before there is a job. Imported objects live until the end, so the garbage collector
    # need not search them, which would take a fifth of the time.
    gc.disable()
    import harness.run.cell_job  # noqa: F401
    from harness.models.start import StartingPoint

    gc.freeze()
    gc.enable()
    start = StartingPoint()
    while (line := jobs.get()) is not None:
        stopping = Stopping()
        try:
            _Now.stopping = stopping
            state, reason = _do(line, home, start, lambda event: tell({"event": "progress", **event}), stopping)
        except Interrupted:
            state, reason = "interrupted", INTERRUPTED if stopping.is_for_good else "cancelled"
        _Now.stopping = _Now.cell = None
        tell({"event": "ended", "state": state, "reason": reason})
        if stopping.is_for_good:
            return


def _do(line: str, home: Path, start: StartingPoint, tell: Tell, stopping: Stopping) -> tuple[JobState, str | None]:
    document = json.loads(line)
    try:
        plugins.use(document["plugins"], [Path(folder) for folder in document["folders"]])
        job = Job.from_json(document).in_slot()
    except RefusedError as error:
        # A plug-in that existed when the job was planned no longer exists.
        return "invalid", str(error)
    _Now.cell = CellRecord.at(home / job.path) if job.kind == CELL else None
    return run_job(job, home, start, tell, stopping)


class _Telling:
    """Reports a job's progress, and its wait for a judge.

    The wait is shown as the phase of the last progress. It is also reported once as a remark, for logs.
    """

    def __init__(self, job: Job, tell: Tell) -> None:
        self._name, self._tell = Path(job.path).name or job.kind, tell
        self._last: Event = {"step": 0, "steps": 0, "done_frac": 0.0}
        self._is_away = False

    def of_progress(self, event: Event) -> None:
        if "phase" in event:
            self._last, self._is_away = event, False
        self._tell(event)

    def of_waiting(self, sentence: str, is_away: bool) -> None:
        if is_away and not self._is_away:
            self._tell({"remark": f"{self._name}: {sentence}"})
        self._is_away = is_away
        self._tell({**self._last, "phase": sentence})


def _read_jobs(jobs: queue.SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        if line.strip() == CANCEL:
            # The signal is handled in the main thread, where the job runs.
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            jobs.put(line)
    if _is_one_of_several():
        # The parent, which should have ended this process, was killed.
        os.kill(os.getpid(), signal.SIGKILL)
    jobs.put(None)
    # stdin has closed. Ask the main thread to stop, and end the process if it does not.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_WITHIN_S)
    # The process hangs, and its parent can no longer kill it.
    os._exit(1)


def _stop(signum: int, frame: FrameType | None) -> None:
    """End the worker on SIGTERM.

    If an update takes too long for a checkpoint within `STOP_WITHIN_S`, the update is abandoned.
    """
    if _Now.stopping is None:
        raise Interrupted
    signal.signal(signal.SIGALRM, _insist)
    signal.setitimer(signal.ITIMER_REAL, UPDATE_WITHIN_S)
    _Now.stopping.ask()


def _insist(signum: int, frame: FrameType | None) -> None:
    if _Now.stopping is not None:
        _Now.stopping.insist()


def _cancel(signum: int, frame: FrameType | None) -> None:
    # If `stopping` is None, the job ended before the signal arrived.
    if _Now.stopping is not None:
        _Now.stopping.ask(for_good=False)


def _watch(main_thread: int, tell: Write) -> None:
    """Send heartbeats that say for how long the main thread has made no progress, and where it is.

    After `NAMED_AFTER_S` without progress, the stack is written to the cell's log. No progress means that every
    function on the stack is still at the same instruction. Frames inside the outermost function of the user's code are
    not compared, because code that waits for a server may look busy. One call of that function counts as one step.
    """
    place, still_s, told_s, is_logged = None, 0.0, 0.0, False
    looked_s = time.monotonic()
    while True:
        if _Now.is_watched_elsewhere:
            place = None
            faulthandler.cancel_dump_traceback_later()
            time.sleep(LOOK_EVERY_S)
            continue
        now_s, cell = time.monotonic(), _Now.cell
        # The time is capped, because this process may have been suspended for hours.
        still_s, looked_s = still_s + min(now_s - looked_s, COUNTED_AT_ONCE_S), now_s
        now, at = _whereabouts(sys._current_frames()[main_thread])
        if now != place:
            place, still_s, is_logged = now, 0.0, False
        if still_s >= NAMED_AFTER_S and cell is not None and not is_logged:
            is_logged = True
            stack = "".join(traceback.format_stack(sys._current_frames()[main_thread]))
            cell.add_to_log(f"{time.strftime('%Y-%m-%d %H:%M:%S')} no progress for {still_s:.0f} s:\n{stack}")
        if now_s - told_s >= BEAT_S:
            told_s = now_s
            tell({"event": "progress", "still_s": still_s, "at": at})
            # If native code holds the GIL, this thread cannot run either. The stack then goes to stderr.
            faulthandler.dump_traceback_later(SILENT_AFTER_S)
        time.sleep(LOOK_EVERY_S)


def _whereabouts(frame: FrameType) -> tuple[list[object], str]:
    """Return a thread's position, in a form to compare and in words.

    Frames are not kept, because they would keep tensors alive. The frame of the user's function is the exception: as
    long as it exists, no later call can be mistaken for it.
    """
    stack, users = [frame], plugins.files_in_use()
    while (caller := stack[-1].f_back) is not None:
        stack.append(caller)
    marks: list[object] = [getattr(_Now.stopping, "signs_of_life", 0)]
    for one in reversed(stack):
        if one.f_code.co_filename in users:
            return [*marks, one], _in_words(one)
        # f_lasti is the instruction at which a function is, so any progress changes a mark.
        marks.append((id(one.f_code), one.f_lasti))
    ours = (one for one in stack if one.f_code.co_filename.startswith(_OUR_FOLDERS))
    return marks, _in_words(next(ours, frame))


def _in_words(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} of {frame.f_code.co_filename}, line {frame.f_lineno}"


if __name__ == "__main__":
    main()
