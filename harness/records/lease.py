"""Leases: files that each name the one process that may work in a folder.

Only one process at a time may run a cell, make a shared result or write a question, whether the processes run on one
machine or on several that share the folder.

lease.json names its owner by a random id and counts the owner's heartbeats. Neither host names nor clocks of different
machines are compared:

* A lease is created by link(); a dead owner's lease is first renamed away. If several processes try, one succeeds.
* An owner counts as dead in three cases: it has released the lease; its file lock is gone although it would be visible
  to this kernel; or the file has not changed for `STALE_AFTER_S` by the reader's own monotonic clock.
* An owner that was suspended and taken for dead may wake up late. The fence (`harness.records.fence`) blocks its
  writes. At its next heartbeat it finds another owner's id and stops.

Locks only reveal a death sooner. On a file system without locks, heartbeats suffice.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Literal, Protocol, TypedDict

from harness.records.fence import LeaseLostError, directory_of, fenced

HEARTBEAT_S = 10.0
STALE_AFTER_S = 120.0
"""The time of twelve heartbeats. If the file has not changed for so long, its owner counts as dead."""
_FILE = "lease.json"
_LOOK_EVERY_S = 1.0
_BYTES = 512
"""The fixed size of the file: a heartbeat overwrites it in place."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors that link() raises on a file system without hard links."""
_TRIES = 5
_RETRY_S = 0.05


class LeaseFields(TypedDict, total=False):
    """The fields of lease.json, or none if the file is not a valid lease."""

    owner: str
    epoch: int
    released: bool
    host: str
    pid: int
    kernel: str
    job: str
    locked: bool


class LeaseTakenError(Exception):
    """Another live process owns this folder."""


class Clock(Protocol):
    """The functions of the module `time` that leases use."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


@dataclass
class Lease:
    """A lease that this process holds, or held until another process took it over."""

    path: Path
    owner: str
    epoch: int
    """The number of this start, higher than the number of every earlier start."""
    about: dict[str, object]
    """The host, process, kernel and job of the owner, and whether it has locked the file."""
    before: LeaseFields
    """The fields of the lease that this lease replaced; {} if there was none."""
    beats: int = 0
    is_lost: bool = False
    """True if another process is known to own the folder. It is noticed by `require` or at the next heartbeat."""

    def require(self) -> None:
        """Raise LeaseLostError if another process owns the folder. Call it before writing a checkpoint or a result."""
        if self.is_lost or not self._is_ours():
            self.is_lost = True
            raise LeaseLostError(
                f"{self.path.parent.name} was taken over by another process ({_in_words(_read(self.path))}), since "
                f"this one sent no heartbeat for {STALE_AFTER_S:.0f} s; its work since then does not count."
            )

    def _is_ours(self) -> bool:
        """Return whether the file still names this owner."""
        for _ in range(_TRIES):
            content = _read(self.path)
            if content is not None:
                return _parse(content).get("owner") == self.owner
            time.sleep(_RETRY_S)  # another process renamed it by mistake and is putting it back
        return False

    def beat(self, released: bool = False) -> None:
        """Write a heartbeat. Raises OSError if the file cannot be written.

        released: whether this is the last heartbeat, which releases the lease.
        """
        if not self._is_ours():
            self.is_lost = True
            return
        # The file is written in place, through a handle of the file that was checked. If it has been renamed away
        # meanwhile, the write does no harm.
        with self.path.open("r+b") as file:
            if _parse(file.read()).get("owner") == self.owner:
                self.beats += 1
                file.seek(0)
                file.write(self.content(released))
                file.flush()
                os.fsync(file.fileno())

    def content(self, released: bool = False) -> bytes:
        """Return the content of the file, padded to its fixed size."""
        known = {"owner": self.owner, "epoch": self.epoch, "beats": self.beats, "released": released}
        text = json.dumps({**known, **self.about, "heartbeat_s": round(time.time())})
        return text.encode().ljust(_BYTES - 1) + b"\n"


@dataclass(frozen=True)
class _Sighting:
    """The state of a lease when it was last read.

    content: the content of the file.
    since_s: when this content was first seen, by the reader's clock.
    has_changed: whether the content was seen to change, which shows that the owner was alive.
    """

    content: bytes
    since_s: float
    has_changed: bool


@dataclass
class Leases:
    """Access to the leases of shared folders, from the viewpoint of one process."""

    kernel: str | None = None
    """The id of the running kernel; None looks it up."""
    host: str = field(default_factory=socket.gethostname)
    clock: Clock = time
    sightings: dict[Path, _Sighting] = field(default_factory=dict)
    """The last sighting of each lease."""

    @contextmanager
    def hold(
        self, folder: Path, last_epoch: int = 0, job: str = "", starts: bool = True, dead_job: str = ""
    ) -> Iterator[Lease]:
        """Own a cell's folder during the block.

        last_epoch: the highest epoch in the cell's records.
        job: the id of the job for which this process owns the folder.
        starts: whether a new epoch begins; pass False if no row of the cell will be written.
        dead_job: the id of a job whose process is known to be dead.

        Raises LeaseTakenError if another live process owns the folder. If only time can show whether the owner is
        alive, this waits for its next heartbeat, at most for `STALE_AFTER_S`.
        """
        with ExitStack() as open_files:
            lease = self._take(folder / _FILE, last_epoch, open_files, job, starts, dead_job)
            released = threading.Event()
            heart = threading.Thread(target=_beat, args=(lease, released), daemon=True)
            heart.start()
            try:
                with fenced(folder, directory_of(folder, lease.owner)):
                    yield lease
            finally:
                released.set()
                heart.join()
                # If this write fails, the lock still shows that the folder is free, or the heartbeat goes stale.
                with suppress(OSError):
                    lease.beat(released=True)

    @contextmanager
    def hold_after(self, folder: Path, job: str, epoch: int) -> Iterator[bool]:
        """Own a folder during the block, to record how a job of this process ended. Yields whether it is owned.

        Yields False, without the lease, if another process has owned the folder since the job began: that process's
        records are the valid ones.
        epoch: the epoch of the folder's lease when the job was created.
        """

        def is_last(lease: LeaseFields) -> bool:
            return lease.get("job") == job or lease.get("epoch", 0) <= epoch

        with ExitStack() as held:
            is_ours = is_last(_parse(_read(folder / _FILE) or b""))
            if is_ours:
                try:
                    lease = held.enter_context(self.hold(folder, starts=False, dead_job=job))
                    # Another process may have owned the folder between the first check and the lease, so the check is
                    # repeated.
                    is_ours = is_last(lease.before)
                except LeaseTakenError:
                    is_ours = False
            yield is_ours

    @contextmanager
    def hold_in_turn(self, folder: Path, on_wait: Callable[[str], None] = lambda owner: None) -> Iterator[Lease]:
        """Own a folder as soon as no other process does. The folder is created if it is missing.

        on_wait: called every second with a description of the owner; an exception from it ends the wait.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            lease: Lease | None = None
            while lease is None:
                while self.look(folder) != "free":
                    on_wait(_in_words(_read(folder / _FILE)))
                    self.clock.sleep(_LOOK_EVERY_S)
                with suppress(LeaseTakenError):  # another process was quicker
                    lease = held.enter_context(self.hold(folder))
            yield lease

    def look(self, folder: Path) -> Literal["free", "held", "unknown"]:
        """Return whether a process owns the folder, or "unknown" if only time can show whether its owner is alive.

        After "unknown", call this again: the answer is known at the owner's next heartbeat, or after `STALE_AFTER_S`
        without a heartbeat.
        """
        path = folder / _FILE
        found = _read(path)
        if found is None:
            return "free"
        state = self._state(path, found)
        if state != "unknown":
            return "held" if state == "alive" else "free"
        if self._is_stale(path, found):
            return "free"
        return "held" if self.sightings[path].has_changed else "unknown"

    def is_held(self, folder: Path) -> bool:
        """Return whether the folder has an owner that is not known to be dead."""
        return self.look(folder) != "free"

    def _take(
        self,
        path: Path,
        last_epoch: int,
        open_files: ExitStack,
        job: str = "",
        starts: bool = True,
        dead_job: str = "",
    ) -> Lease:
        """Create the lease of a folder that is free; raise LeaseTakenError if another process owns it."""
        dead = self._await_free(path, dead_job)
        # A process may have died after it renamed a dead lease to this name. The epoch of that lease is used up.
        left = [_read(one) or b"" for one in path.parent.glob(f".{_FILE}.*.was")]
        last = max(last_epoch, *(_parse(one).get("epoch", 0) for one in (dead or b"", *left)))
        about = {"host": self.host[:64], "pid": os.getpid(), "kernel": self._kernel(path.parent), "job": job}
        lease = Lease(path, uuid.uuid4().hex, last + starts, about, _parse(dead or b""))
        aside, writes = path.with_name(f".{_FILE}.{lease.owner}.tmp"), directory_of(path.parent, lease.owner)
        try:
            # The directory must exist before the lease is visible, so that the next owner finds it.
            writes.mkdir()
            _write(aside, lease, open_files)
            if dead is not None:
                # link() replaces nothing, so the dead owner's file must go first.
                _rename_away(path, dead, lease.owner)
            _link(aside, path, lease, open_files)
            if not lease._is_ours():
                raise FileExistsError
        except FileExistsError:
            shutil.rmtree(writes, ignore_errors=True)
            raise _taken(path) from None
        finally:
            aside.unlink(missing_ok=True)
        for one in path.parent.glob(f".{_FILE}.*.was"):
            # Our own lease may have this name while a process that renamed it by mistake puts it back. Deleting it
            # would lose it.
            if _parse(_read(one) or b"").get("owner") != lease.owner:
                one.unlink(missing_ok=True)
        return lease

    def _await_free(self, path: Path, dead_job: str = "") -> bytes | None:
        """Wait until the lease is free. Return the content of the dead owner's lease, or None if there is no lease.

        dead_job: the id of a job whose process is known to be dead.
        Raises LeaseTakenError if the owner is alive.
        """
        watched: bytes | None = None
        while (found := _read(path)) is not None:
            if dead_job and _parse(found).get("job") == dead_job:
                return found
            state = self._state(path, found)
            if state == "alive" or (watched is not None and found != watched):
                raise _taken(path)
            if state == "dead" or self._is_stale(path, found):
                return found
            if watched is None:
                # Start the clocks of the other cells too, so that one wait serves all cells of a dead machine.
                for other in path.parents[1].glob(f"*/{_FILE}"):
                    self._is_stale(other, _read(other) or b"")
            watched = found
            self.clock.sleep(_LOOK_EVERY_S)
        return None

    def _is_stale(self, path: Path, found: bytes) -> bool:
        """Return whether the lease has been unchanged for so long that its owner must be dead."""
        now_s = self.clock.monotonic()
        seen = self.sightings.get(path)
        if seen is None or seen.content != found:
            self.sightings[path] = _Sighting(found, now_s, has_changed=seen is not None)
            return False
        return now_s - seen.since_s >= STALE_AFTER_S

    def _state(self, path: Path, found: bytes) -> Literal["alive", "dead", "unknown"]:
        """Return whether the owner is alive, as far as the file and its lock show it without waiting."""
        owner = _parse(found)
        if owner.get("released"):
            return "dead"
        lock = _lock_of(path)
        if lock == "held":
            return "alive"
        if not owner:  # not a lease: it blocks nobody
            return "dead"
        known = owner.get("kernel") if owner.get("locked") else None
        return "dead" if lock == "free" and known is not None and known == self._kernel(path.parent) else "unknown"

    def _kernel(self, folder: Path) -> str:
        """Return an id of the kernel and file system that manage the locks. Containers on one machine share both."""
        return f"{self.kernel or _boot_id()}:{folder.stat().st_dev}"


HERE = Leases()
hold_lease, hold_after, hold_in_turn = HERE.hold, HERE.hold_after, HERE.hold_in_turn
look_at_lease, is_leased = HERE.look, HERE.is_held


def epoch_of(folder: Path) -> int:
    """Return the epoch in a folder's lease, held or not, or 0 if the folder has no lease."""
    return _parse(_read(folder / _FILE) or b"").get("epoch", 0)


def _beat(lease: Lease, released: threading.Event) -> None:
    while not lease.is_lost and not released.wait(HEARTBEAT_S):
        # The folder may be unreachable for a while; the next heartbeat tries again.
        with suppress(OSError):
            lease.beat()


@cache
def _boot_id() -> str:
    """Return an id of the running kernel, or of the machine on systems other than Linux."""
    path = Path("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        return path.read_text().strip()
    return f"{uuid.getnode():x}-{socket.gethostname()}"


def _read(path: Path) -> bytes | None:
    """Return the content of a file, or None if it does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _parse(content: bytes) -> LeaseFields:
    """Return the fields of a lease, or {} if the content is not a valid lease."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    required = {"owner": str, "epoch": int, "beats": int, "released": bool}
    is_lease = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in required.items())
    fields: LeaseFields = found if is_lease else {}
    return fields


def _in_words(content: bytes | None) -> str:
    owner = _parse(content or b"")
    return f"process {owner.get('pid')} on {owner.get('host')}" if owner else "starting up"


def _taken(path: Path) -> LeaseTakenError:
    return LeaseTakenError(f"{path.parent.name} is being run by another process ({_in_words(_read(path))}).")


def _lock_of(path: Path) -> Literal["held", "free", "unknown"]:
    """Return whether a process holds the file's lock, as far as the file system shows it."""
    try:
        with path.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return "free"
    except BlockingIOError:
        return "held"
    except OSError:  # ENOLCK and others: no locks on this file system
        return "unknown"


def _lock(handle: IO[bytes]) -> bool:
    """Lock a file without waiting; return False if that fails, as on a file system without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write(path: Path, lease: Lease, open_files: ExitStack) -> None:
    """Write the lease to a new file, which is locked before others can see it and for as long as it is open."""
    handle = open_files.enter_context(path.open("xb"))
    lease.about["locked"] = _lock(handle)
    handle.write(lease.content())
    handle.flush()
    os.fsync(handle.fileno())


def _link(aside: Path, path: Path, lease: Lease, open_files: ExitStack) -> None:
    """Link the finished file to the lease's name; raise FileExistsError if another process was quicker."""
    try:
        os.link(aside, path)
    except FileExistsError:
        if aside.stat().st_nlink == 1:  # else the link was made, and only the reply was lost on the network
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Exclusive creation is atomic too, but other processes may see the file while it is still empty.
        _write(path, lease, open_files)


def _rename_away(path: Path, dead: bytes, owner: str) -> None:
    """Rename a dead owner's lease away; raise FileExistsError if another process was quicker."""
    was = path.with_name(f".{_FILE}.{owner}.was")
    try:
        path.rename(was)
    except FileNotFoundError:
        raise FileExistsError from None
    if _read(was) == dead:
        return
    # The lease now has another owner or a new heartbeat, so put it back.
    with suppress(OSError):
        os.link(was, path)
    if not path.exists():
        with suppress(FileNotFoundError):  # the next owner has deleted it
            was.rename(path)
    was.unlink(missing_ok=True)
    raise FileExistsError
