"""Extents: how much of each file existed when a checkpoint was written or a cell finished.

Rows may be appended after they were counted. If a file has become smaller or has changed within its extent, records
were lost, whatever the status says.

The stand of a folder is a list of names, sizes and modification times. It shows without reading the files whether any
has been written since.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from harness.records.files import make_durable


class Extent(TypedDict, total=False):
    """The first `bytes` of a file and their checksum, or the number and total size of a folder's Parquet files."""

    rows: int
    """The number of lines within `bytes`; only for a JSONL file."""
    files: int
    """The number of Parquet files; only for a folder."""
    bytes: int
    blake2b: str
    """The checksum of the first `bytes` of a file."""


Counted = Mapping[str, Extent]


def is_counted(document: Mapping[str, object]) -> bool:
    """Return whether a document read from a file has the form of `Counted`."""
    kinds = {"rows": int, "files": int, "bytes": int, "blake2b": str}
    return all(
        isinstance(extent, dict)
        and "bytes" in extent
        and ("blake2b" in extent or "files" in extent)
        and all(name in kinds and isinstance(value, kinds[name]) for name, value in extent.items())
        for extent in document.values()
    )


def count(folder: Path, names: Sequence[str]) -> Counted:
    """Sync these files to disk and return the extents of those files and folders that exist.

    The files of a folder need no sync: each was synced when it was renamed into place.
    """
    paths = [path for name in names if (path := folder / name).exists()]
    make_durable(path for path in paths if path.is_file())
    return {path.name: _extent(path) for path in paths}


def _extent(path: Path) -> Extent:
    if path.is_dir():
        return _size_of(path)
    content = path.read_bytes()
    rows = {"rows": content.count(b"\n")} if path.suffix == ".jsonl" else {}
    return cast(Extent, {**rows, "bytes": len(content), "blake2b": _checksum(content)})


def shortfall(path: Path, counted: Extent) -> str | None:
    """Describe how a file or folder falls short of its extent; return None if the extent is intact, byte for byte."""
    if "files" in counted:
        return size_shortfall(path, counted)
    try:
        with path.open("rb") as handle:
            # The checksum does not cover rows that were appended later.
            content = handle.read(counted["bytes"])
    except OSError as error:
        return f"{path}: {error.strerror}"
    n_rows = content.count(b"\n")
    if n_rows < counted.get("rows", 0):
        return f"{path}: holds {n_rows} of the {counted['rows']} rows that were counted"
    if len(content) < counted["bytes"]:
        return f"{path}: holds {len(content)} of the {counted['bytes']} bytes that were counted"
    if _checksum(content) != counted["blake2b"]:
        return f"{path}: is not what was written (its checksum differs)"
    return None


def size_shortfall(path: Path, counted: Extent) -> str | None:
    """Return the `shortfall` if sizes alone show one. A file that is long enough is not read."""
    try:
        if "files" not in counted:
            return shortfall(path, counted) if path.stat().st_size < counted["bytes"] else None
        there = _size_of(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if there["files"] >= counted["files"] and there["bytes"] >= counted["bytes"]:
        return None
    return (
        f"{path}: holds {there['bytes']} bytes in {there['files']} files of the {counted['bytes']} bytes in "
        f"{counted['files']} files that were counted"
    )


def _size_of(folder: Path) -> Extent:
    with os.scandir(folder) as entries:
        sizes = [entry.stat().st_size for entry in entries if entry.name.endswith(".parquet")]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


_NO_RESULTS = ("checkpoints", "code", "log.txt", "lease.json", "__pycache__")
"""Writes to these files do not change the results: a heartbeat rewrites lease.json, for example."""


def stand(folder: Path) -> list[tuple[str, int, int]]:
    """Return path, bytes and mtime (ns) of each file of results below a folder, or [] if there is no such folder.

    Every write to such a file changes the list.
    """
    return sorted(_stand(str(folder), "")) if folder.is_dir() else []


def _stand(folder: str, below: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _NO_RESULTS or entry.name.startswith("."):
                continue
            name = f"{below}{entry.name}"
            if entry.is_dir():
                yield from _stand(entry.path, f"{name}/")
            else:
                facts = entry.stat()
                yield name, facts.st_size, facts.st_mtime_ns
