"""A cache in a home of results that are expensive to compute, shared by all processes, on several machines too.

Each process appends to a file of its own, so two processes never write to the same file, even on a shared disk. A kill
can only tear the last line, which readers skip. Before a process computes a result, it looks for it in what the others
have written since.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from harness.records.files import append_jsonl

MOST_BYTES = 2 * 2**30
"""Limit for a folder; above it the oldest files are deleted."""
_IN_USE_S = 24 * 3600.0
"""A file written more recently than this may belong to a live process, so it is kept."""

Item = TypeVar("Item")


class Remembered(ABC, Generic[Item]):
    """The items in one folder, by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Item] = {}
        self._read_bytes: dict[str, int] = {}
        self._own: Path | None = None

    @abstractmethod
    def _row_of(self, name: str, item: Item) -> dict[str, object]:
        """Return the item as a line of JSON."""

    @abstractmethod
    def _item_in(self, row: dict[str, Any]) -> tuple[str, Item]:
        """Return the item of a line, with its name.

        Raises ValueError, TypeError or KeyError for a damaged line, which is skipped.
        """

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the names that no process has a result for, without duplicates."""
        if any(name not in self._known for name in names):
            self._read_news()
        return [name for name in dict.fromkeys(names) if name not in self._known]

    def __getitem__(self, name: str) -> Item:
        return self._known[name]

    def keep(self, name: str, item: Item) -> None:
        """Write an item to this process's file, then remember it."""
        if self._own is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._drop_oldest()
            # Host, process and a random part: process ids repeat, on other machines and after a restart.
            self._own = self._folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        append_jsonl(self._own, [self._row_of(name, item)])
        self._known[name] = item

    def _read_news(self) -> None:
        """Read the lines that others appended since the last call, except torn ones. A name's first item stays."""
        for path in sorted(self._folder.glob("*.jsonl")):
            if path == self._own:
                continue
            try:
                with path.open("rb") as handle:
                    handle.seek(self._read_bytes.get(path.name, 0))
                    # Read up to the last line break only: the rest may be a line that is still being written.
                    whole, newline, _ = handle.read().rpartition(b"\n")
            except FileNotFoundError:  # another process deleted it to make room
                continue
            self._read_bytes[path.name] = self._read_bytes.get(path.name, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                try:
                    name, item = self._item_in(json.loads(line))
                except (ValueError, TypeError, KeyError):
                    continue
                self._known.setdefault(name, item)

    def _drop_oldest(self) -> None:
        """Delete the oldest files while the folder is above `MOST_BYTES`."""
        sizes = {path: path.stat() for path in self._folder.glob("*.jsonl")}
        total = sum(stat.st_size for stat in sizes.values())
        for path, stat in sorted(sizes.items(), key=lambda item: item[1].st_mtime):
            # Files come oldest first, so all that follow are younger and may be in use too.
            if total <= MOST_BYTES or time.time() - stat.st_mtime < _IN_USE_S:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size
