"""Leases: a file that says which process runs a cell, so that two `bench run` never run the same one.

The owner holds an exclusive lock on the file while it lives (the kernel drops it with the process, however it dies) and
renews the heartbeat, which serves machines that share a folder but not its locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

HEARTBEAT_S = 10.0
STALE_AFTER_S = 120.0
_FILE = "lease.json"
_LOCK_TRIES = 10
_LOCK_RETRY_S = 0.02


class LeaseTakenError(Exception):
    """Another live process runs this cell."""


@contextmanager
def hold_lease(folder: Path) -> Iterator[None]:
    """Own a cell's folder for the duration. Raises LeaseTakenError while another live process owns it."""
    path = folder / _FILE
    with path.open("a+", encoding="utf-8") as handle:
        if not _lock(handle):
            raise LeaseTakenError(f"{folder.name} is being run by another process ({_owner(path)}).")
        if _is_fresh_elsewhere(path):
            raise LeaseTakenError(f"{folder.name} is being run on another machine ({_owner(path)}).")
        _write_owner(handle)
        released = threading.Event()
        heart = threading.Thread(target=_beat, args=(handle, released), daemon=True)
        heart.start()
        try:
            yield
        finally:
            released.set()
            heart.join()
            handle.truncate(0)


def _lock(handle: IO[str]) -> bool:
    # Who only asks (`is_leased`) holds the lock for an instant too: a few tries tell it from an owner.
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_LOCK_RETRY_S)
    return False


def _beat(handle: IO[str], released: threading.Event) -> None:
    while not released.wait(HEARTBEAT_S):
        _write_owner(handle)


def _write_owner(handle: IO[str]) -> None:
    handle.seek(0)
    handle.truncate()
    json.dump({"host": socket.gethostname(), "pid": os.getpid(), "heartbeat_s": time.time()}, handle)
    handle.flush()


def is_leased(folder: Path) -> bool:
    """Whether a live process owns the folder."""
    path = folder / _FILE
    try:
        with path.open("r", encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return _is_fresh_elsewhere(path)


def _is_fresh_elsewhere(path: Path) -> bool:
    owner = _read(path)
    return (
        owner is not None
        and owner["host"] != socket.gethostname()
        and time.time() - owner["heartbeat_s"] < STALE_AFTER_S
    )


def _owner(path: Path) -> str:
    owner = _read(path)
    return f"process {owner['pid']} on {owner['host']}" if owner else "starting up"


def _read(path: Path) -> dict[str, Any] | None:
    """The recorded owner; None if there is none, or if the file is not a lease of ours."""
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    match owner:
        case {"host": str(), "pid": int(), "heartbeat_s": int() | float()}:
            return dict(owner)
        case _:
            return None
