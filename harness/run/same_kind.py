"""A sweep's folder is that of arms or that of a search: the page of one would be written over that of the other."""

from __future__ import annotations

from pathlib import Path

from harness.errors import RefusedError
from harness.records.files import DamagedRecordError
from harness.records.study import STUDY
from harness.records.sweep import read_sweep


def require_same_kind(folder: Path, *, is_search: bool) -> None:
    """Raises RefusedError where arms are to be run in the folder of a search, or a search in that of arms."""
    if not folder.is_dir():
        return
    holds_search = (folder / STUDY).exists()
    try:
        there = read_sweep(folder)
    except (FileNotFoundError, DamagedRecordError):  # written anew by the run
        holds_arms = False
    else:
        holds_search = holds_search or there.is_search
        holds_arms = not there.is_search and any(cell.path.exists() for cell in there.cells)
    if is_search and holds_arms:
        ours, theirs = "a search", "a sweep of arms"
    elif not is_search and holds_search:
        ours, theirs = "a sweep of arms", "a search"
    else:
        return
    raise RefusedError(
        f"{folder}: holds the records of {theirs}, and {folder.name} is {ours} now, whose page would be written over "
        "the other's. Give it another `name:`, or choose another --home."
    )
