"""A custom executor: runs each job in its own process at low priority, so that the machine stays usable.

With this file next to the sweep file, named polite.py, and `plugins: [polite]` in the sweep file:

    bench run my_question.yaml --executor polite

`python -m WORKER HOME` runs jobs. It reads a JSON line for each on stdin, reports events as JSON lines on stdout, and
stops at the line `null`, leaving the records ready to continue. An executor only decides where workers run: with a
different command, they run under a scheduler, in a container, or on a host that sees the same home.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from harness.executors.base import Ended, ExecutorKind, Job, Progress
from harness.executors.slots import Slot

LOW_PRIORITY = ["nice", "-n", "5"]


class PoliteExecutor:
    """What it promises is said in `harness.executors.base.Executor`."""

    def __init__(self, slots: Sequence[Slot], home: Path, worker_module: str) -> None:
        self.slots = len(slots)
        self._free = list(slots)
        self._command = [*LOW_PRIORITY, sys.executable, "-P", "-m", worker_module, str(home)]
        self._running: dict[Job, subprocess.Popen[str]] = {}
        self._happened: queue.SimpleQueue[Progress | Ended] = queue.SimpleQueue()

    def start(self, job: Job) -> None:
        pipe, printed = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the job ends
        slot = self._free.pop()
        environment = {**os.environ, **slot.environment}
        process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=printed, text=True, env=environment)
        self._running[job] = process
        self._tell(job, job.to_json())
        threading.Thread(target=self._listen, args=(job, slot, process, printed), daemon=True).start()

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        try:
            return [self._happened.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def cancel(self, job: Job) -> None:
        self._tell(job, None)

    def kill(self, job: Job) -> None:
        self._running[job].kill()

    def close(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()

    def _tell(self, job: Job, message: dict[str, Any] | None) -> None:
        stdin = self._running[job].stdin
        with suppress(BrokenPipeError):  # it has just died; that its output ends says so
            print(json.dumps(message), file=stdin, flush=True)

    def _listen(self, job: Job, slot: Slot, process: subprocess.Popen[str], printed: IO[str]) -> None:
        """In a thread of its own: what a worker tells, until its job has ended or its output has."""
        end = None
        for event in map(json.loads, process.stdout or ()):
            if event.pop("event") == "progress":
                self._happened.put(Progress(job, event))
            else:
                end = Ended(job, event["state"], event["reason"])
                process.terminate()
        code = process.wait()
        printed.seek(0)
        self._free.append(slot)
        with printed:
            self._happened.put(end or Ended(job, "failed", f"its process ended with code {code}", printed.read()))


POLITE = ExecutorKind("polite", "a process of low priority for each job", PoliteExecutor)
