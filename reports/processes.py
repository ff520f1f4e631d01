"""Processes beside this one for a report's work: cells are read, laws fitted and figures drawn independently."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

MANY_CELLS = 24
"""Fewer are reported on before other processes would have started and imported what they need."""

MOST_PROCESSES = 8
"""Each takes about a quarter of a GB."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def process_count(n_cells: int) -> int:
    """How many processes work on the report of so many cells; 1: this one alone."""
    return min(os.cpu_count() or 1, MOST_PROCESSES) if n_cells >= MANY_CELLS else 1


def each_in_processes(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> list[Result]:
    """[function(item) for item in items], in so many processes; 1: in this one. Function, items and results are sent
    by pickle. An exception in one is raised here."""
    if processes == 1:
        return [function(item) for item in items]
    from joblib import Parallel, delayed

    # They start anew rather than as forks, which would inherit the locks of threads that they do not have.
    work = Parallel(n_jobs=processes, backend="loky", pre_dispatch="all", max_nbytes=None)
    results: list[Result] = work(delayed(function)(item) for item in items)
    return results
