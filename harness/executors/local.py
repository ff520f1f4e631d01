"""Worker processes on this machine. If a worker dies, only its job ends. If it was killed, the job is retried."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from harness.executors.base import Ended, Event, ExecutorKind, Job, Progress, best_place
from harness.executors.slots import Slot
from harness.secrets import redact

STOP_WITHIN_S = 9.0
"""How long all workers together may take to stop before they are killed."""
CANCEL = "null"
"""This line, in place of a job, tells a worker to stop the running job."""
_STDERR_TAIL_CHARACTERS = 20_000
"""The number of characters, at the end of a crashed worker's output, that are kept."""


@dataclass(eq=False)
class _Worker:
    slot: Slot
    process: subprocess.Popen[str]
    stderr: IO[str]
    leads_group: bool
    job: Job | None = None
    model: str | None = None

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        # A worker that has just died cannot read the line. Its job then fails when the worker's output ends.
        with suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Kill the worker and, if it leads a process group, its children."""
        if not self.leads_group:
            self.process.kill()
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class LocalPool:
    """An executor with one worker process per slot.

    The workers start at once, because each needs seconds for imports. They live until `close`, so later jobs reuse the
    models that they have loaded.
    """

    def __init__(self, slots: Sequence[Slot], home: Path, worker_module: str, end_with_us: bool = False) -> None:
        """Start the workers.

        end_with_us: whether to keep the workers in this process's group, so that they receive signals to the group.
        """
        self.slots = len(slots)
        self._end_with_us = end_with_us
        self._empty = list(slots)
        # `-P` keeps the current folder out of `sys.path`, where a user's module could shadow one of Python's.
        self._command = [sys.executable, "-P", "-m", worker_module, str(home)]
        self._workers: list[_Worker] = []
        self._messages: queue.SimpleQueue[tuple[_Worker, dict[str, object] | None]] = queue.SimpleQueue()
        self._start_workers()

    def start(self, job: Job) -> None:
        # Replace workers that have died.
        self._start_workers()
        idle = best_place(job, [worker for worker in self._workers if worker.job is None])
        idle.job, idle.model = job, job.model
        idle.tell(json.dumps(job.to_json()))

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        try:
            # This waits only for the first event, and then takes all others that have arrived.
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return []
        happened = [self._read(*message)]
        while not self._messages.empty():
            happened.append(self._read(*self._messages.get()))
        return [event for event in happened if event is not None]

    def cancel(self, job: Job) -> None:
        for worker in self._workers:
            if worker.job is job:
                worker.tell(CANCEL)

    def kill(self, job: Job) -> None:
        for worker in self._workers:
            if worker.job is job:
                worker.end()

    def close(self) -> None:
        """Stop all workers. Each writes a checkpoint if `STOP_WITHIN_S` suffices. A second Ctrl-C kills them."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        try:
            for worker in self._workers:
                worker.process.terminate()
            for worker in self._workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline_s - time.monotonic()))
        finally:
            for worker in [*self._workers]:
                self._remove(worker)

    def _read(self, worker: _Worker, message: dict[str, Any] | None) -> Progress | Ended | None:
        """Return the event that a worker's message stands for. message: None if the worker's output has ended."""
        job = worker.job
        if job is None:
            # The worker died while it was idle.
            if message is None:
                self._remove(worker)
            return None
        if message is None:
            worker.job = None
            return self._died(worker, job)
        if message.pop("event") == "progress":
            return Progress(job, cast(Event, message))
        worker.job = None
        return Ended(job, message["state"], message["reason"], where=worker.slot.name)

    def _died(self, worker: _Worker, job: Job) -> Ended:
        """Return the end of a job whose worker process died, with the end of the process's output."""
        code = worker.process.wait()
        worker.stderr.seek(0)
        # Secrets are redacted before the output is truncated, because truncation may leave half of a secret.
        output = redact(worker.stderr.read())[-_STDERR_TAIL_CHARACTERS:]
        self._remove(worker)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        last = output.strip().rpartition("\n")[2]
        reason = f"its worker process {how}{': ' + last if last else ''}"
        # SIGKILL comes from outside: from a user, or from the system if memory was exhausted.
        return Ended(job, "failed", reason, output, worker.slot.name, again=code == -signal.SIGKILL)

    def _remove(self, worker: _Worker) -> None:
        worker.end()
        worker.process.wait()
        worker.stderr.close()
        self._workers.remove(worker)
        self._empty.append(worker.slot)

    def _start_workers(self) -> None:
        while self._empty:
            self._start_worker(self._empty.pop(0))

    def _start_worker(self, slot: Slot) -> None:
        stderr = tempfile.TemporaryFile(  # noqa: SIM115 - closed with the worker
            "w+", encoding="utf-8", errors="replace"
        )
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            env=slot.worker_environment(),
            process_group=None if self._end_with_us else 0,
        )
        worker = _Worker(slot, process, stderr, leads_group=not self._end_with_us)
        self._workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()

    def _listen(self, worker: _Worker) -> None:
        """Queue the messages of a worker, and None when its output ends. Runs in a separate thread."""
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            # An incomplete line means that the worker died while writing it.
            if line.endswith("\n"):
                self._messages.put((worker, json.loads(line)))
        self._messages.put((worker, None))


LOCAL = ExecutorKind("local", "worker processes on this machine, one for each running cell", LocalPool)
