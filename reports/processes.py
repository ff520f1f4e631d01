"""Worker processes for a report: they read cells, fit laws, draw figures and write the page of samples.

Each is a fresh interpreter with a pipe. A fork could inherit locks whose owning threads do not exist in the child. A
joblib pool would cost 30 MB and half a second for processes of its own.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

from harness import plugins

CELLS_OF_A_PROCESS = 3
"""The fewest cells per process. A process takes over a second to start and import, so fewer are not worth it."""

MOST_PROCESSES = 8
"""Limits memory: each process takes about 0.2 GB."""

THREADS_OF = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Gives each process one thread for linear algebra: other cores are in use, and idle threads busy-wait."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def process_count(n_cells: int) -> int:
    """Return how many processes to use for a report of `n_cells` cells, including this one; at most one per core."""
    if n_cells < 2 * CELLS_OF_A_PROCESS:
        return 1
    # Systems without CPU affinity, such as macOS, lack this function.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES, n_cells // CELLS_OF_A_PROCESS)


class _KilledError(Exception):
    """A worker process ended before it returned its result."""


class _Process:
    """A worker that runs one task at a time, with the plug-ins that were in use here when it started."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self.plugins = plugins.named()
        # The worker needs this process's sys.path first. Without it, the worker could not import _serve or unpickle
        # functions of plug-ins.
        code = f"""
import sys
sys.path[:] = {sys.path!r}
from reports.processes import _serve
_serve({theirs.fileno()})
"""
        # Arrow's own allocator keeps freed memory, a tenth of the memory of each process, including this one.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        environment = os.environ | dict.fromkeys(THREADS_OF, "1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._connection.send(self.plugins)

    def call(self, function: Callable[..., Result], *given: object) -> Result:
        """Run function(*given) in the worker and return its result; function, arguments and result are pickled.

        Raises what the function raises, and _KilledError if the worker ends early.
        """
        try:
            self._connection.send((function, given))
            result, error = self._connection.recv()
        except (EOFError, ConnectionError) as closed:
            raise _KilledError from closed
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _serve(descriptor: int) -> None:
    """Answer calls until the parent closes its end of the pipe or kills this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent.
    connection = Connection(descriptor)
    # Use the modules that the parent found: a new search by name might find another file than the trusted one.
    plugins.use_found(*connection.recv())
    while True:
        try:
            function, given = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[object, Exception | None] = function(*given), None
        except Exception as error:  # noqa: BLE001 - raised where the function was called
            answer = None, error
        connection.send(answer)


_IDLE: deque[_Process] = deque()
"""Idle workers, which the next call of `each_in_processes` reuses."""

_BUSY: list[Thread] = []
"""Threads that wait for work started by `meanwhile`, each for a worker of its own."""

LOOK_AGAIN_S = 0.02
"""How often, in seconds, a thread that must not start its worker yet checks whether work is left."""


@contextmanager
def meanwhile(work: Callable[[], object], processes: int) -> Iterator[None]:
    """Run `work` in another process while the block runs in this one; if `processes` is 1, run it before the block.

    Until the work is done, `each_in_processes` uses one process fewer. The work is pickled. An exception in it is
    raised at the end of the block. An exception in the block kills the work.
    """
    if processes == 1:
        work()
        yield
        return
    from threadpoolctl import threadpool_limits

    other = _Process()
    faults: list[BaseException] = []

    def wait() -> None:
        try:
            other.call(work)
        except BaseException as error:  # noqa: BLE001 - raised again below
            faults.append(error)
        other.end()  # Frees its memory.

    waiting = Thread(target=wait, daemon=True)
    waiting.start()
    _BUSY.append(waiting)
    try:
        with threadpool_limits(1):
            yield
        waiting.join()
    finally:
        _BUSY.remove(waiting)
        other.end()
    # A killed worker, e.g. by the out-of-memory killer, is not an error of the work, so do the work here instead.
    for fault in faults:
        if not isinstance(fault, _KilledError):
            raise fault
        work()


def each_in_processes(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> list[Result]:
    """Return [function(item) for item in items], computed by `processes` processes, including this one.

    The function, items and results are pickled. Workers use the same plug-ins. An exception in a worker is raised here.
    If a worker is killed, e.g. by the out-of-memory killer, this process does its work.
    """
    if processes == 1 or len(items) < 2:
        return [function(item) for item in items]
    from threadpoolctl import threadpool_limits

    # A worker loaded its plug-ins when it started and cannot load others.
    if any(one.plugins != plugins.named() for one in _IDLE):
        end_processes()
    waiting = deque(enumerate(items))
    results: dict[int, Result] = {}
    faults: list[BaseException] = []

    def work() -> None:
        while (taken := _take(waiting)) is not None:
            place, item = taken
            results[place] = function(item)

    def send(busy: Thread | None) -> None:
        # The worker of `meanwhile` counts as one of the processes, so this sender starts its own worker only after that
        # one has ended.
        while busy is not None and waiting and busy.is_alive():
            busy.join(LOOK_AGAIN_S)
        if not waiting:
            return
        try:
            other = _take(_IDLE) or _Process()
            try:
                while (taken := _take(waiting)) is not None:
                    place, item = taken
                    results[place] = other.call(function, item)
            except _KilledError:
                # Put the item back for another sender, or for this process, which checks the queue again after the
                # senders have ended.
                waiting.appendleft((place, item))
                other.end()
            except BaseException:
                other.end()
                raise
            else:
                _IDLE.append(other)
        except BaseException as error:  # noqa: BLE001 - raised again below
            faults.append(error)
            waiting.clear()

    busy = [*_BUSY, *[None] * processes][: processes - 1]
    senders = [Thread(target=send, args=[one], daemon=True) for one in busy]
    for sender in senders:
        sender.start()
    with threadpool_limits(1):
        try:
            work()
        except BaseException:
            waiting.clear()
            raise
        finally:
            for sender in senders:
                sender.join()
        if faults:
            raise faults[0]
        work()  # Items that a killed worker left behind.
    return [results[place] for place in range(len(items))]


def end_processes() -> None:
    """Kill the idle workers of `each_in_processes`."""
    while _IDLE:
        _IDLE.pop().end()


def give_back_memory() -> None:
    """Return freed memory to the system, if the C library can.

    Otherwise every process would hold on to as much memory as its largest figure took.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Only glibc has it.
    if trim is not None:
        trim(0)


def _take(waiting: deque[Item]) -> Item | None:
    try:
        return waiting.popleft()
    except IndexError:  # Another thread took the last item.
        return None


class SentOnce(Generic[Item]):
    """A large object that a function needs for every item. Each worker reads it once, from a file."""

    def __init__(self, value: Item, path: Path) -> None:
        """Write the value to `path`. The file must exist as long as the object is in use."""
        with path.open("wb") as file:
            pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)  # Written in pieces, without a second copy.
        self._path, self._value = path, value

    def __getstate__(self) -> dict[str, object]:
        """Pickle only the path, so that the value never travels through the pipe."""
        return {"_path": self._path, "_value": None}

    def get(self) -> Item:
        return _read(self._path) if self._value is None else self._value


@lru_cache(maxsize=1)
def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)
