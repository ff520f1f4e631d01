"""A pool of worker processes on this machine. A worker that dies takes only its job with it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from harness.run.jobs import Job, JobState

STOP_WITHIN_S = 30.0
ENVIRONMENT = {
    # One thread each: processes are the parallelism, and results do not depend on how many there are.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # torch asks for huge pages: a step allocates and frees large tensors, and each small page costs a fault.
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""Of a worker."""
CANCEL = "null"
"""What a worker reads in the place of a job when it is to stop the one that it does."""
_STDERR_TAIL_CHARACTERS = 20_000


@dataclass(frozen=True)
class Ended:
    """A job's end. `output`: what a worker that crashed had printed."""

    job: Job
    state: JobState
    reason: str | None
    output: str = ""


OnProgress = Callable[[Job, dict[str, Any]], None]
OnEnded = Callable[[Ended], None]


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[str]
    stderr: IO[str]
    job: Job | None = None

    def give(self, job: Job) -> None:
        self.job = job
        self.tell(json.dumps(job.to_json()))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        # A worker that has just died cannot take it; that its output ends says so, and fails the job.
        with suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()


@dataclass
class LocalPool:
    """Runs jobs in `workers` processes. Use as a context manager: leaving it stops the workers.

    The first job starts them all, for each imports for seconds before it can work. They live on between calls of `run`,
    so what they have loaded serves the next jobs.
    """

    workers: int
    _pool: list[_Worker] = field(default_factory=list)
    _messages: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = field(default_factory=queue.SimpleQueue)

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._pool:
            worker.process.terminate()
        for worker in self._pool:
            try:
                worker.process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.stderr.close()

    def cancel(self, job: Job) -> None:
        """Stop a running job where it can be continued: it ends with the state `interrupted`. For callbacks of `run`.
        One that is about to end all the same may still end well."""
        for worker in self._pool:
            if worker.job is job:
                worker.tell(CANCEL)

    def run(self, jobs: Sequence[Job], on_progress: OnProgress, on_ended: OnEnded) -> None:
        """Do all jobs, in order as workers become free; returns when the last has ended. on_ended may raise to stop."""
        if not jobs:
            return
        waiting = deque(jobs)
        while len(self._pool) < self.workers:
            self._start()
        for worker in self._pool[: len(waiting)]:
            worker.give(waiting.popleft())
        while any(worker.job for worker in self._pool):
            worker, message = self._messages.get()
            if worker.job is None:
                self._remove(worker)
                continue
            if message is not None and message.pop("event") == "progress":
                on_progress(worker.job, message)
                continue
            ended = self._ended(worker, message)
            worker.job = None
            on_ended(ended)
            if waiting:
                (worker if worker in self._pool else self._start()).give(waiting.popleft())

    def _ended(self, worker: _Worker, message: dict[str, Any] | None) -> Ended:
        assert worker.job is not None
        if message is not None:
            return Ended(worker.job, message["state"], message["reason"])
        code = worker.process.wait()
        worker.stderr.seek(0)
        output = worker.stderr.read()[-_STDERR_TAIL_CHARACTERS:]
        self._remove(worker)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        last = output.strip().rpartition("\n")[2]
        return Ended(worker.job, "failed", f"its worker process {how}{': ' + last if last else ''}", output)

    def _remove(self, worker: _Worker) -> None:
        """Forget a worker that has died, at a job or while it had nothing to do."""
        worker.process.wait()
        worker.stderr.close()
        self._pool.remove(worker)

    def _start(self) -> _Worker:
        stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with the worker
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.executors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            env=os.environ | ENVIRONMENT,
        )
        worker = _Worker(process, stderr)
        self._pool.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            self._messages.put((worker, json.loads(line)))
        self._messages.put((worker, None))
