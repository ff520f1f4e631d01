"""`bench report --live`: the page is written again and again while its sweep runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cli.console import note
from harness.records import SweepRecord, read_sweep

EVERY_S = 20.0
ENDED = frozenset({"done", "failed", "invalid"})
_FILES = ("status.json", "steps.jsonl", "scores.jsonl")


def follow(
    folder: Path, write: Callable[[], dict[str, Any]], wait: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Call `write` whenever records of the sweep in `folder` have changed, until all its cells have ended; returns what
    it gave last. A sweep that was interrupted is waited for: `bench run` may go on with it."""
    written: dict[str, Any] | None = None
    seen: object = None
    while True:
        sweep = read_sweep(folder)
        states = [cell.state for cell in sweep.cells]
        now = _stamp(sweep)
        if now != seen and "done" in states:
            written = write()
            note(f"{sum(state in ENDED for state in states)}/{len(states)} cells have ended; Ctrl-C stops watching")
        elif seen is None:
            note("no cell is done yet; waiting for the first")
        seen = now
        if all(state in ENDED for state in states):
            # Without a finished cell `write` says why there is no report.
            return written if written is not None else write()
        wait(EVERY_S)


def _stamp(sweep: SweepRecord) -> object:
    """Changes whenever something was recorded."""
    paths = [sweep.path / "sweep.json", *(cell.path / name for cell in sweep.cells for name in _FILES)]
    stats = [path.stat() if path.exists() else None for path in paths]
    return [None if stat is None else (stat.st_mtime_ns, stat.st_size) for stat in stats]
