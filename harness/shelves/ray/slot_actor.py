"""The actor in a slot of a cluster: a worker process and the home that it sees. This module does not import Ray.

Files travel between machines without a shared disk as parcels: tar archives of one file or of a folder's files.
"""

from __future__ import annotations

import os
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypedDict, cast

from harness.config.hashing import NUMERICS_VERSION
from harness.executors.base import Job, Progress
from harness.executors.local import LocalPool
from harness.executors.slots import VISIBLE, Slot
from harness.records.fence import aside_of, remove, require_owned
from harness.records.files import write_atomic, write_folder

CHUNK_BYTES = 32 * 2**20
CODE = "code-of-the-run"
"""The folder in an actor's private home that receives the user's code."""
_CHECKPOINTS, _LEASE, _STATUS = "checkpoints", "lease.json", "status.json"


class About(TypedDict):
    """An actor's description of itself: plain data, so that machines with another version of bench can read it too."""

    host: str
    gpus: str | None
    """The visible GPUs, as CUDA_VISIBLE_DEVICES; None if it is not set."""
    shares_home: bool
    """True if it sees the head's home."""
    numerics: int


class SlotActor:
    """A worker process and its home. It serves one call at a time; no call blocks much beyond its timeout."""

    def __init__(self, slot: Slot, home: str, token: str, worker_module: str) -> None:
        # The head has just created the token in its home. Another home under the same path lacks this file.
        self._own_home = None if (Path(home) / token).is_file() else Path(tempfile.mkdtemp(prefix="bench-ray-"))
        self._home = self._own_home or Path(home)
        self._pool = LocalPool([slot], self._home, worker_module)
        self._parcel = tempfile.TemporaryFile()  # noqa: SIM115 - used until the actor ends

    def about(self) -> About:
        return {
            "host": socket.gethostname(),
            "gpus": os.environ.get(VISIBLE),
            "shares_home": self._own_home is None,
            "numerics": NUMERICS_VERSION,
        }

    def start(self, document: dict[str, object]) -> None:
        if self._own_home is not None:
            document |= {"folders": [str(self._own_home / CODE)]}
        self._pool.start(cast(Job, _Sent(document)))

    def wait(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the events of the worker, as JSON documents."""
        return [
            {"event": "progress", **one.event}
            if isinstance(one, Progress)
            else {"event": "ended", "state": one.state, "reason": one.reason, "output": one.output, "again": one.again}
            for one in self._pool.wait(timeout_s)
        ]

    def cancel(self) -> None:
        for worker in self._pool._workers:
            if worker.job is not None:
                self._pool.cancel(worker.job)

    def kill(self) -> None:
        for worker in self._pool._workers:
            worker.end()

    def close(self) -> None:
        """Stop the worker; its job can be continued from its records."""
        self._pool.close()

    def leave(self) -> None:
        """Remove the private home, if there is one."""
        if self._own_home is not None:
            shutil.rmtree(self._own_home, ignore_errors=True)

    def missing(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if not (self._home / path).exists()]

    def receive(self, chunk: bytes, path: str | None) -> None:
        """Take one part of a parcel. path: given with the last part; the parcel replaces what is at that path."""
        self._parcel.write(chunk)
        if path is not None:
            place = self._home / path
            shutil.rmtree(place, ignore_errors=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            unpack(self._parcel, place)

    def pack(self, path: str) -> None:
        pack(self._home / path, self._parcel)

    def read(self) -> bytes:
        """Return the next part of the parcel, empty at its end. The parcel is then emptied too."""
        if not (chunk := self._parcel.read(CHUNK_BYTES)):
            self._parcel.seek(0)
            self._parcel.truncate()
        return chunk


@dataclass(frozen=True)
class _Sent:
    """A job as JSON: parsing its spec may need plug-ins that only the worker process loads."""

    document: dict[str, object]
    model: str = ""

    def to_json(self) -> dict[str, object]:
        return self.document


def pack(source: Path, parcel: IO[bytes]) -> None:
    """Fill a parcel with a file, or with the files of a folder, and rewind it. It omits leases and unfinished files.

    A worker may be writing meanwhile. The rows that a checkpoint counts are written before it, so checkpoints are read
    first.
    """
    parcel.seek(0)
    parcel.truncate()
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    with tarfile.open(fileobj=parcel, mode="w") as tar:
        for path in sorted(files, key=lambda path: (_CHECKPOINTS not in path.parts, path)):
            name = path.relative_to(source)
            if any(part.startswith(".") for part in name.parts) or path.name == _LEASE:
                continue
            with suppress(FileNotFoundError), path.open("rb") as file:  # a new checkpoint replaces an old one
                tar.addfile(tar.gettarinfo(arcname=str(name), fileobj=file), file)
    parcel.seek(0)


def unpack(parcel: IO[bytes], place: Path) -> None:
    """Write a parcel's file, or the files of its folder, to `place`, and empty the parcel."""
    parcel.seek(0)
    with tarfile.open(fileobj=parcel) as tar:
        for member in tar:
            target = place / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
    parcel.seek(0)
    parcel.truncate()


def unpack_into(parcel: IO[bytes], folder: Path) -> None:
    """Update the folder of a cell from a parcel. This process must hold the cell's lease.

    Rows come first, then the checkpoints that count them, status.json last: after a kill at any point the cell resumes.
    """
    arrived = aside_of(folder / "parcel")
    try:
        arrived.mkdir()
    except FileNotFoundError:
        require_owned(folder / "parcel")
        raise
    unpack(parcel, arrived)
    units = _units(arrived)
    for unit in sorted(units, key=lambda unit: (unit.name == _STATUS, unit.parts[0] == _CHECKPOINTS, unit)):
        target = folder / unit
        target.parent.mkdir(parents=True, exist_ok=True)
        if (arrived / unit).is_dir():
            write_folder(target, partial(_move_files, arrived / unit), replaces=True)
        else:
            write_atomic(target, (arrived / unit).rename)
    for gone in _units(folder) - units:
        remove(folder / gone)


def _units(cell: Path) -> set[Path]:
    """Return what is replaced as a whole in a cell's folder, relative to it: each checkpoint, and any other file."""
    files = [path.relative_to(cell) for path in cell.rglob("*") if path.is_file()]
    return {
        path.parent if path.parts[0] == _CHECKPOINTS and len(path.parts) > 2 else path
        for path in files
        if path.name != _LEASE and not any(part.startswith(".") for part in path.parts)
    }


def _move_files(source: Path, target: Path) -> None:
    for path in [*source.iterdir()]:
        path.rename(target / path.name)


def unpack_whole(parcel: IO[bytes], target: Path) -> None:
    """Unpack completely or not at all. A target that another process has created meanwhile stays."""
    parcel.seek(0)
    with tarfile.open(fileobj=parcel) as tar:
        # A single file is stored relative to itself, so its name is ".".
        is_file = tar.getnames() == ["."]
    if is_file:
        write_atomic(target, lambda aside: unpack(parcel, aside))
    else:
        write_folder(target, lambda aside: unpack(parcel, aside))
