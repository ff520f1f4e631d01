"""Runs a model-written program, isolated as well as the machine allows, and reports the isolation.

Each program runs in its own process (see _sandbox.py), with limits on CPU time, wall-clock time, memory, open files and
file size. It cannot start processes or threads, has no stdin, and its output is discarded. If Linux permits namespaces,
it has no network and sees only Python's own files and an empty folder in memory. Otherwise it can read and write
whatever its user can. `isolation` measures which of the two applies.

The sandbox does not stop a program that escapes through a kernel bug.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evals.errors import EvalError

_PROGRAM = Path(__file__).with_name("_sandbox.py")
# A fixed hash seed gives sets of strings the same order in all runs.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
# Time for starting and ending the process, in addition to the program's own.
_BESIDES_S = 30.0

AT_ONCE = min(8, os.cpu_count() or 1)
"""The number of programs that one process of bench runs at the same time."""


@dataclass(frozen=True)
class Limits:
    """The limits on a program."""

    cpu_s: int = 2
    """A program is killed after this much CPU time, whatever the machine's load."""
    wall_s: float = 30.0
    """A limit that is reached only by a program that idles, or on a machine that stalls."""
    memory_bytes: int = 512 << 20
    file_bytes: int = 8 << 20
    disk_bytes: int = 16 << 20
    """The size of the program's folder, if it has namespaces."""
    open_files: int = 64
    reply_bytes: int = 1 << 20
    """The total size of all returned values."""


@dataclass(frozen=True)
class Program:
    """Python source, the function in it to call, and the arguments of each call."""

    code: str
    entry_point: str
    calls: Sequence[Sequence[Any]]


class Ran(NamedTuple):
    """The outcome of running a program."""

    replies: list[bytes]
    """One for each call, in order, as JSON: {"value": ...}, or {} for an exception.

    There are fewer replies than calls if the program ended early.
    """
    end: Literal["ended", "unreadable", "timeout", "lost"]
    """`unreadable`: the text is not Python. `timeout`: the program idled beyond `wall_s`. `lost`: unknown, because the
    process that watches the program was killed.
    """


class _RefusedError(Exception):
    """Programs cannot be contained in this way on this machine."""


def run_program(program: Program, limits: Limits | None = None, namespaces: bool | None = None) -> Ran:
    """Run a program in the sandbox, and call its function. Can be called from any thread.

    namespaces: whether the program gets its own namespaces; None if the system permits it.
    Raises EvalError if programs cannot be contained.
    """
    try:
        return _run(program, limits or Limits(), isolation().namespaces if namespaces is None else namespaces)
    except _RefusedError as error:
        raise EvalError("evals.shelves.code.containment_lost", error=error, remedy=_REMEDY) from None


_REMEDY = (
    "Run bench as an ordinary user, who may have namespaces (see docs/howto/code.md), or with a Python that all users "
    "may read"
)


@dataclass(frozen=True)
class Isolation:
    """The abilities of a sandboxed program on this machine, as measured."""

    namespaces: bool
    user: int
    """The id of the user that it runs as."""
    network: bool
    """True if the program can reach a network."""
    files: bool
    """True if the program can list bench's folder."""
    processes: bool
    """True if the program can start processes."""

    @property
    def account(self) -> dict[str, str]:
        """A description in words, for records."""
        return {
            "namespaces": "own" if self.namespaces else "those of bench",
            "user": str(self.user),
            "network": "reachable" if self.network else "none",
            "files": "all that its user may read" if self.files else "Python and a folder of its own",
            "processes": "may be started" if self.processes else "none but its own",
        }


_PROBE = """
import os, socket

def probe(folder):
    def works(attempt):
        try:
            attempt()
        except OSError:
            return False
        return True

    def connect():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.connect(("192.0.2.1", 9))  # sends nothing

    def start():
        if os.fork() == 0:
            os._exit(0)

    return [os.getuid(), works(connect), works(lambda: os.listdir(folder)), works(start)]
"""


@lru_cache(maxsize=1)
def isolation() -> Isolation:
    """Measure the isolation with a program that tries to break it. Cached per process.

    Raises EvalError if programs cannot be contained.
    """
    refusals = []
    for namespaces in (True, False):
        try:
            ran = _run(Program(_PROBE, "probe", [[str(Path(__file__).parent)]]), Limits(), namespaces)
        except _RefusedError as error:
            refusals.append(str(error))
            continue
        if ran.replies and (found := json.loads(ran.replies[0]).get("value")):
            return Isolation(namespaces, *found)
        refusals.append(f"a first program did not run ({ran.end})")
    raise EvalError("evals.shelves.code.containment_not_available", reasons="; ".join(refusals), remedy=_REMEDY)


def _run(program: Program, limits: Limits, namespaces: bool) -> Ran:
    """Run a program with or without namespaces. Raises _RefusedError if it cannot be contained."""
    request = asdict(program) | {"limits": asdict(limits), "namespaces": namespaces}
    with _folder() as folder, _pipe() as replies, _pipe() as status:
        process = subprocess.Popen(
            # No packages, no user's packages, no script folder on the path, and no compiled files.
            [sys.executable, "-S", "-s", "-P", "-B", str(_PROGRAM), str(replies.write), str(status.write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=_ENVIRONMENT,
            pass_fds=(replies.write, status.write),
            start_new_session=True,
        )
        try:
            # The parent's write ends must be closed. Otherwise reading would not reach the end when the child exits.
            replies.close_write()
            status.close_write()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(request).encode())
            written, said = _listen(replies.read, status.read, limits)
        finally:
            with contextlib.suppress(ProcessLookupError):
                # The process leads its own group (`start_new_session`). On Linux its child, which has left the group,
                # dies with it.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if "refused" in said:
        raise _RefusedError(said["refused"])
    lines = written.split(b"\n")[:-1]  # After the last line end comes nothing, or an incomplete reply.
    if lines[:1] == [b'{"unreadable": true}']:
        return Ran([], "unreadable")
    return Ran(lines, "lost" if "timed_out" not in said else "timeout" if said["timed_out"] else "ended")


def _listen(replies: int, status: int, limits: Limits) -> tuple[bytes, dict[str, Any]]:
    """Return what the program wrote, and the report of its watching process, or {} if there is no report.

    The program may keep its pipe open indefinitely, or flood it. What it wrote by its end counts, up to `reply_bytes`.
    """
    written, said, end_s = b"", b"", time.monotonic() + limits.wall_s + _BESIDES_S
    with selectors.DefaultSelector() as selector:
        selector.register(replies, selectors.EVENT_READ)
        selector.register(status, selectors.EVENT_READ)
        while (left_s := end_s - time.monotonic()) > 0:
            ready = {key.fd for key, _ in selector.select(left_s)}
            if replies in ready:
                written += (chunk := os.read(replies, 1 << 16))
                if not chunk:
                    selector.unregister(replies)
                # Stop a program that floods the pipe, before it fills bench's memory.
                if len(written) > limits.reply_bytes:
                    return written[: limits.reply_bytes], {"timed_out": False}
            elif status in ready:  # Read the status after all earlier replies.
                said += (chunk := os.read(status, 1 << 12))
                if not chunk or said.endswith(b"\n"):
                    break
    return written, json.loads(said) if said.endswith(b"\n") else {}


class _Pipe:
    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self._is_writable = True

    def close_write(self) -> None:
        if self._is_writable:
            self._is_writable = False
            os.close(self.write)


@contextlib.contextmanager
def _pipe() -> Iterator[_Pipe]:
    pipe = _Pipe()
    try:
        yield pipe
    finally:
        pipe.close_write()
        os.close(pipe.read)


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Create an empty folder, and remove it afterwards with all its contents.

    Without namespaces, a program may leave folders that nobody may enter, or that are nested too deeply for Python's
    own removal.
    """
    folder = tempfile.mkdtemp(prefix="bench-code-")
    try:
        yield folder
    finally:
        try:
            os.rmdir(folder)  # noqa: PTH106
        except OSError:
            subprocess.run(["chmod", "-R", "u+rwX", folder], check=False, stderr=subprocess.DEVNULL)
            subprocess.run(["rm", "-rf", folder], check=True)
