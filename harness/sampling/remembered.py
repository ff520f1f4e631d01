"""A cache of expensive results in a home folder, shared by all processes, even on several machines.

Each process appends to its own file, so two processes never write to the same file, even on a shared disk. A kill can
only tear the last line, which readers skip. Before a process computes a result, it reads what the others have written
since.
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
"""If a folder is larger than this, its oldest files are deleted."""
_IN_USE_S = 24 * 3600.0
"""A file that was written within this time may belong to a running process, so it is kept."""

Item = TypeVar("Item")


class Remembered(ABC, Generic[Item]):
    """The cached items of one folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Item] = {}
        self._read_bytes: dict[str, int] = {}
        self._own: Path | None = None

    @abstractmethod
    def _row_of(self, name: str, item: Item) -> dict[str, object]:
        """Return the item as a row, which is stored as a line of JSON."""

    @abstractmethod
    def _item_in(self, row: dict[str, Any]) -> tuple[str, Item]:
        """Return (name, item) from a row.

        Raises ValueError, TypeError or KeyError if the row is damaged. The caller then skips it.
        """

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the names for which no process has a result yet, without duplicates."""
        if any(name not in self._known for name in names):
            self._read_news()
        return [name for name in dict.fromkeys(names) if name not in self._known]

    def __getitem__(self, name: str) -> Item:
        return self._known[name]

    def keep(self, name: str, item: Item) -> None:
        """Append an item to this process's file and keep it in memory."""
        if self._own is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._drop_oldest()
            # Host, process id and a random part, because process ids repeat on other machines and after a restart.
            self._own = self._folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        append_jsonl(self._own, [self._row_of(name, item)])
        self._known[name] = item

    def _read_news(self) -> None:
        """Read the complete lines that other processes appended since the last call. A name's first item wins."""
        for path in sorted(self._folder.glob("*.jsonl")):
            if path == self._own:
                continue
            try:
                with path.open("rb") as handle:
                    handle.seek(self._read_bytes.get(path.name, 0))
                    # Read only up to the last line break, because another process may still be writing the rest.
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
        """Delete the oldest files while the folder is larger than `MOST_BYTES`. Recently written files are kept."""
        sizes = {path: path.stat() for path in self._folder.glob("*.jsonl")}
        total = sum(stat.st_size for stat in sizes.values())
        for path, stat in sorted(sizes.items(), key=lambda item: item[1].st_mtime):
            # Files come oldest first, so all later files are younger and may also be in use.
            if total <= MOST_BYTES or time.time() - stat.st_mtime < _IN_USE_S:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size
