"""Worker processes for a large report: cells are read, laws fitted and figures drawn independently."""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

from harness import plugins

MANY_CELLS = 24
"""Fewer cells are reported on before another process has started and imported what it needs."""

MOST_PROCESSES = 8
"""Each takes about 0.4 GB of memory."""

THREADS_OF = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Each process has one thread for linear algebra: other cores are taken, and idle threads would wait by spinning."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def process_count(n_cells: int) -> int:
    """How many processes work on the report of so many cells, this one included: one per core that it may use."""
    if n_cells < MANY_CELLS:
        return 1
    from joblib import cpu_count

    return min(int(cpu_count()), MOST_PROCESSES)


def each_in_processes(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> list[Result]:
    """[function(item) for item in items], in so many processes, of which this one is the first.

    Function, items and results travel by pickle. The other processes use the same plug-ins. An exception in one of them
    is raised here. If one of them is killed, as it may be for its memory, this process does what it was doing.
    """
    if processes == 1:
        return [function(item) for item in items]
    from concurrent.futures import BrokenExecutor

    from joblib.externals.loky import get_reusable_executor
    from threadpoolctl import threadpool_limits

    # Arrow's own allocator keeps what was freed: a tenth of each process's memory.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # They are started anew: forks would inherit the locks of threads that they do not have.
    executor = get_reusable_executor(
        max_workers=processes - 1,
        env=dict.fromkeys(THREADS_OF, "1"),
        initializer=plugins.use,
        initargs=plugins.asked_for(),
    )
    waiting = deque(enumerate(items))
    results: dict[int, Result] = {}
    faults: list[BaseException] = []

    def work() -> None:
        while (taken := _take(waiting)) is not None:
            place, item = taken
            results[place] = function(item)

    def send() -> None:
        try:
            while (taken := _take(waiting)) is not None:
                place, item = taken
                try:
                    results[place] = executor.submit(function, item).result()
                except BrokenExecutor:
                    waiting.appendleft(taken)
                    return
        except BaseException as error:  # noqa: BLE001 - raised again below
            faults.append(error)
            waiting.clear()

    senders = [Thread(target=send, daemon=True) for _ in range(processes - 1)]
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
        work()  # what was left by a process that was killed
    return [results[place] for place in range(len(items))]


def end_processes() -> None:
    """End the processes that `each_in_processes` started, if any. Otherwise this one, at its own end, would wait for
    them."""
    if "joblib.externals.loky" not in sys.modules:
        return
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _take(waiting: deque[tuple[int, Item]]) -> tuple[int, Item] | None:
    try:
        return waiting.popleft()
    except IndexError:  # another thread took the last
        return None


class SentOnce(Generic[Item]):
    """A large object that a function needs for every item: each other process reads it once, from a file."""

    def __init__(self, value: Item, path: Path) -> None:
        """path: a file that lasts as long as the object is needed."""
        path.write_bytes(pickle.dumps(value))
        self._path, self._value = path, value

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_value": None}

    def get(self) -> Item:
        return _read(self._path) if self._value is None else self._value


@lru_cache(maxsize=1)
def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())
