"""Processes beside this one for a report's work: cells are read, laws fitted and figures drawn independently."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

from harness import plugins

MANY_CELLS = 24
"""Fewer are reported on before another process would have started and imported what it needs."""

MOST_PROCESSES = 8
"""Each takes about 0.4 GB."""

THREADS_OF = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""One thread of linear algebra a process: the cores are taken, and idle ones wait by spinning."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def process_count(n_cells: int) -> int:
    """How many processes work on the report of so many cells, this one included: as many as it may use cores."""
    if n_cells < MANY_CELLS:
        return 1
    from joblib import cpu_count

    return min(int(cpu_count()), MOST_PROCESSES)


def each_in_processes(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> list[Result]:
    """[function(item) for item in items], in so many processes, of which this one is the first. Function, items and
    results are sent by pickle. The others have the plug-ins of this one. An exception in one is raised here; what one
    was doing when it was killed, as for its memory, this one does."""
    if processes == 1:
        return [function(item) for item in items]
    from concurrent.futures import BrokenExecutor

    from joblib.externals.loky import get_reusable_executor
    from threadpoolctl import threadpool_limits

    # Arrow's own allocator keeps what was freed: a tenth of a process, and there are several.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # They start anew rather than as forks, which would inherit the locks of threads that they do not have.
    executor = get_reusable_executor(
        max_workers=processes - 1,
        env=dict.fromkeys(THREADS_OF, "1"),
        initializer=plugins.use,
        initargs=plugins.as_used(),
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
    """Let go of those that `each_in_processes` started. At its own end this one would wait for them to clear up."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _take(waiting: deque[tuple[int, Item]]) -> tuple[int, Item] | None:
    try:
        return waiting.popleft()
    except IndexError:  # another thread took the last
        return None


class SentOnce(Generic[Item]):
    """A large object that a function needs with every item: this process has it, each other one reads it once."""

    def __init__(self, value: Item, path: Path) -> None:
        """Writes it to `path`, for as long as it is needed."""
        path.write_bytes(pickle.dumps(value))
        self._path, self._value = path, value

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_value": None}

    def get(self) -> Item:
        return _read(self._path) if self._value is None else self._value


@lru_cache(maxsize=1)
def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())
