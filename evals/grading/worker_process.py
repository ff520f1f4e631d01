"""A process for other people's code that judges answers or plays environments. It may be slow, eat memory or crash.

A time limit by `signal.alarm` works only in the main thread, and cannot interrupt big-integer arithmetic. So the code
runs in a worker process, which is killed and replaced if necessary. Can be called from any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from evals.errors import EvalError
from evals.grading import Reason

_REPLIES: Final[dict[str, Reason]] = {"match": "match", "mismatch": "mismatch", "unparsed": "unparsed"}
"""The replies that a judge may give. Any other reply counts as a crash."""

WORKER = Path(__file__).with_name("_worker.py")
"""The program of workers that judge, which is started by its path."""
CPU_LIMIT_S = 2.0
# Reached only by a worker that gets no CPU time at all, e.g. because it is stopped or swapped out.
WALL_LIMIT_S = 60.0
_START_LIMIT_S = 120.0


class WorkerLostError(Exception):
    """A worker ended without an answer. reason: `timeout` if it took too long, else `crash`."""

    def __init__(self, reason: Literal["timeout", "crash"]) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerProcess:
    """A worker process, started when first needed and again after it was lost.

    program: prints `ready`, then answers each line of JSON with one line. A judge (see `ask`) answers with one word:
    match, mismatch, unparsed or crash.
    argument: the program's first argument, which selects what it runs; the limits follow.
    hint: the end of the EvalError if the worker does not start: what it requires, and how to do without it.

    A worker that lives as long as the program should end with it; see `keep`.
    """

    def __init__(
        self,
        argument: str,
        hint: str,
        memory_bytes: int,
        cpu_limit_s: float = CPU_LIMIT_S,
        wall_limit_s: float = WALL_LIMIT_S,
        program: Path = WORKER,
    ) -> None:
        self._argument, self._hint, self._memory_bytes = argument, hint, memory_bytes
        self._program = program
        self._cpu_limit_s = cpu_limit_s
        self._wall_limit_s = wall_limit_s
        self._worker: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, request: Mapping[str, object]) -> Reason:
        """Return a judge's verdict on a request. Raises EvalError if no worker starts."""
        try:
            return _REPLIES.get(self.reply(request), "crash")
        except WorkerLostError as lost:
            return lost.reason

    def reply(self, request: Mapping[str, object], wall_limit_s: float | None = None) -> str:
        """Return the line that the worker answers.

        wall_limit_s: the limit for this request; None for the worker's own.
        Raises WorkerLostError if the worker ends without an answer, and EvalError if no worker starts.
        """
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            worker = self._running()
            assert worker.stdin is not None
            try:
                worker.stdin.write(line)
                worker.stdin.flush()
            except BrokenPipeError:
                self._stop()
                raise WorkerLostError("crash") from None
            reply = _read_line(worker, wall_limit_s or self._wall_limit_s)
            if reply is not None and reply.endswith("\n"):
                return reply.strip()
            self._stop()
            # SIGPROF kills a worker that exceeds its CPU time.
            raise WorkerLostError("timeout" if reply is None or worker.returncode == -signal.SIGPROF else "crash")

    def close(self) -> None:
        """End the worker. The next request starts a new one."""
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """Disown the worker in a forked child, leaving it to the parent."""
        # Another thread of the parent may have held the lock during the fork.
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.returncode = 0  # Not a child of this process, so there is nothing to wait for.
            _close_pipes(self._worker)
            self._worker = None

    def keep(self) -> None:
        """Register hooks that end the worker when the program exits, and disown it in a forked child."""
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.forget)

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the worker, started if necessary. Raises EvalError if it does not start."""
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self._stop()
        self._worker = subprocess.Popen(
            [
                *(sys.executable, "-P", str(self._program)),
                *(self._argument, str(self._memory_bytes), str(self._cpu_limit_s)),
            ],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if _read_line(self._worker, _START_LIMIT_S) != "ready\n":
            self._stop()
            raise EvalError("evals.worker_not_started", worker=self._argument, remedy=self._hint)
        return self._worker

    def _stop(self) -> None:
        if self._worker is None:
            return
        worker, self._worker = self._worker, None
        # A worker whose stdout is closed is already dying. Wait a moment for its return code, which shows the reason,
        # before killing it.
        try:
            worker.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        _close_pipes(worker)


def _read_line(worker: subprocess.Popen[bytes], limit_s: float) -> str | None:
    """Return the worker's next line, or None if it was not complete within the limit.

    The line lacks its line end if the worker closed the pipe.
    """
    assert worker.stdout is not None
    descriptor, line = worker.stdout.fileno(), b""
    # One deadline for the complete line: a worker that writes a byte now and then must not block the caller for ever.
    deadline_s = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                return None
            if not (chunk := os.read(descriptor, 1 << 16)):
                break
            line += chunk
    return line.decode()


def _close_pipes(worker: subprocess.Popen[bytes]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        assert pipe is not None
        # Closing flushes the buffer, but the rest of a request no longer has a reader.
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
