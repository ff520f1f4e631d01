"""A worker process: loads once, then does jobs that come as JSON lines on stdin, one at a time.

Events go out as JSON lines on what was stdout; whatever a library prints goes to stderr. When stdin closes the parent
is gone, and a running job is interrupted. SIGTERM interrupts too; the job leaves its records ready to continue. `null`
in the place of a job interrupts the running one, and the worker waits for the next.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
from types import FrameType
from typing import Any

from harness.run.jobs import Interrupted, Job, run_job


class Cancelled(Interrupted):
    """The job at hand is to stop; the worker lives on."""


class _AtWork:
    """A flag for the signal handler. No Event: the code that the handler breaks into may hold its lock."""

    on_a_job = False


def main() -> None:
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C on a terminal reaches the whole process group; the parent decides what it means for the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGUSR1, _cancel)

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    try:
        _work(jobs, tell)
    except (Interrupted, BrokenPipeError):
        os._exit(0)  # not sys.exit: events may be a broken pipe, and flushing it at exit would fail


def _work(jobs: queue.SimpleQueue[Job | None], tell: Any) -> None:
    # All that takes seconds to import, while there may be no job yet. Most of what is imported stays for good: looking
    # for garbage in it, now and at each later collection, would take a fifth of that time.
    gc.disable()
    import harness.run.cell  # noqa: F401
    from harness.models.start import StartingPoint

    gc.freeze()
    gc.enable()
    start = StartingPoint()
    while (job := jobs.get()) is not None:
        try:
            _AtWork.on_a_job = True
            state, reason = run_job(job, start, lambda event: tell({"event": "progress", **event}))
            _AtWork.on_a_job = False
        except Cancelled:
            state, reason = "interrupted", "cancelled"
        tell({"event": "ended", "state": state, "reason": reason})


def _read_jobs(jobs: queue.SimpleQueue[Job | None]) -> None:
    for line in sys.stdin:
        if (job := json.loads(line)) is None:
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            jobs.put(Job(**job))
    jobs.put(None)
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted


def _cancel(signum: int, frame: FrameType | None) -> None:
    if _AtWork.on_a_job:  # else the job ended while the word was on its way
        _AtWork.on_a_job = False
        raise Cancelled


if __name__ == "__main__":
    main()
