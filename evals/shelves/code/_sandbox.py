"""The program that runs one model-written program in a sandbox.

It is started by its path, so that it imports nothing of this project:

    _sandbox.py <replies> <status>      two file descriptors to write to; the request is on stdin (see sandbox.py)

It enters its own namespaces, if requested, and starts a child. The child drops its privileges, runs the program, and
writes a line of JSON to `replies` for each call: {"value": ...} with the returned value, or {} for an exception. For
text that is not Python, it writes {"unreadable": true} instead. This process enforces the wall-clock limit and writes
one line to `status`: {"timed_out": ...}, or {"refused": ...} if the child cannot be contained as requested.

The request never contains the expected values. So whatever the program does to this process or writes to `replies`, it
achieves at most a value that it could also have returned.
"""

# No pathlib: it is slow to import.
# ruff: noqa: PTH101, PTH102, PTH103, PTH109, PTH112, PTH120, PTH123, PTH208
from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False  # The typing module is slow to import.
if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534
"""The user id of a program if bench runs as root."""

# Constants of sched.h, sys/mount.h and sys/prctl.h.
_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NO_SUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE, _DETACH = 2, 4, 4096, 16384, 1 << 18, 2
_DIES_WITH_PARENT, _DUMPABLE, _NO_NEW_PRIVILEGES = 1, 4, 38
_MOUNT_SETATTR, _HERE, _WITH_SUBMOUNTS, _READ_ONLY = 442, -100, 0x8000, 1
_CAPABILITIES_V3 = 0x20080522


def main() -> None:
    replies, status = map(int, sys.argv[1:])
    # Read before the fork: the child gets /dev/null as its stdin.
    request = json.load(sys.stdin)
    folder, limits = os.getcwd(), request["limits"]
    try:
        # The parent may be killed at any time, and a model's program must not outlive it.
        if sys.platform == "linux":
            _prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        if request["namespaces"]:
            enter_namespaces()
        elif os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
    except OSError as error:
        _say(status, {"refused": str(error)})
        return
    child = os.fork()
    if child == 0:
        try:
            contain(folder, limits, request["namespaces"], replies)
        except OSError as error:
            _say(status, {"refused": str(error)})
            os._exit(1)
        os.close(status)
        answer(request, replies)
        os._exit(0)
    os.close(replies)
    _say(status, {"timed_out": not ends_within(child, limits["wall_s"])})


def enter_namespaces() -> None:
    """Detach from the network, mounts, processes and shared memory of all other processes.

    The next child becomes the first process of its namespace: if it dies, all others in the namespace die too. Raises
    OSError if the system refuses.
    """
    if sys.platform != "linux":
        raise OSError("only Linux has namespaces")
    user, group = os.geteuid(), os.getegid()
    ordinary = _NEW_MOUNTS | _NEW_IPC | _NEW_PIDS | _NEW_NETWORK
    if user == 0:
        _call("unshare", ordinary)
        return
    _call("unshare", ordinary | _NEW_USER)
    # Only root may create the other namespaces without a user namespace. In a new user namespace, ids must be mapped,
    # and the kernel accepts an unprivileged group map only after setgroups is denied.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def contain(folder: str, limits: dict[str, Any], namespaces: bool, replies: int) -> None:
    """Drop every privilege and every file except one pipe. Raises OSError if that is not possible."""
    os.setsid()  # A signal to its process group reaches nobody else.
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        # `replies` is the only inherited descriptor that the program keeps.
        os.dup2(null, standard)
    os.close(null)
    if namespaces:
        enter_own_root(folder, limits["disk_bytes"])
    # Set both the soft and the hard limit, so that the program cannot raise them again.
    for what, limit in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))
    if os.geteuid() == 0:  # The limit on processes does not apply to root.
        # The order matters: after setresuid, the process can no longer change its groups.
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    os.listdir(os.path.dirname(os.__file__))  # Raises if this user cannot read Python's library.
    if sys.platform == "linux":  # macOS refuses to set this limit.
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))
        _call("capset", _words(_CAPABILITIES_V3, 0), _words(*[0] * 6))
        _prctl(_NO_NEW_PRIVILEGES, 1)
        _prctl(_DUMPABLE, 0)
        _prctl(_DIES_WITH_PARENT, signal.SIGKILL)


def enter_own_root(root: str, disk_bytes: int) -> None:
    """Restrict the disk to Python's own files, read-only and without packages, and to an empty folder in memory.

    The folder becomes the current one and disappears with the process. disk_bytes: its size.
    """
    # Without this, the mounts below would propagate to the namespace of all other processes.
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={disk_bytes},nr_inodes=4096,mode=755")
    libraries = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
    for source in dict.fromkeys((f"{sys.base_prefix}/lib", *libraries)):
        if os.path.isdir(source):
            os.makedirs(root + source)
            _mount(source, root + source, None, _BIND | _RECURSIVE)
            _make_read_only(root + source)
    packages = f"{root}{os.path.dirname(os.__file__)}/site-packages"
    if os.path.isdir(packages):
        _mount("tmpfs", packages, "tmpfs", _NO_SUID | _NO_DEVICES | _READ_ONLY, "size=4k")
    os.mkdir(f"{root}/own")
    os.chmod(f"{root}/own", 0o777)
    os.chdir(root)
    _call("pivot_root", b".", b".")  # The old root is now mounted over the new one.
    _call("umount2", b".", _DETACH)
    os.chdir("/own")


def answer(request: dict[str, Any], replies: int) -> None:
    """Run the program and write a reply for each call."""
    with os.fdopen(replies, "w", encoding="ascii") as file:
        try:
            code = compile(request["code"], "<solution>", "exec")
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            print('{"unreadable": true}', file=file, flush=True)
            return
        # A block under `if __name__ == "__main__"` is not run.
        names: dict[str, Any] = {"__name__": "solution"}
        try:
            exec(code, names)
            function = names[request["entry_point"]]
        except BaseException:  # noqa: BLE001  # a model's program: whatever it raises is its answer
            return
        for arguments in request["calls"]:
            try:
                reply = json.dumps({"value": function(*arguments)})
            except BaseException:  # noqa: BLE001
                reply = "{}"
            print(reply, file=file, flush=True)


def ends_within(child: int, wall_s: float) -> bool:
    """Return whether the child ended by itself within the limit. Otherwise kill it, and its namespace with it."""
    started_s = time.monotonic()
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        elapsed_s = time.monotonic() - started_s
        if elapsed_s > wall_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        # Most programs end at once, so poll often at first and rarely later.
        time.sleep(min(0.01, 0.0005 + elapsed_s / 8))
    return True


def _say(status: int, what: dict[str, Any]) -> None:
    os.write(status, json.dumps(what).encode() + b"\n")


def _words(*values: int) -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * len(values))(*values)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind and kind.encode(), flags, options.encode())


def _make_read_only(path: str) -> None:
    """Make a mount read-only, including all mounts below it.

    The mount system call could do that only for one mount at a time.
    """
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY | _NO_SUID | _NO_DEVICES, 0, 0, 0)
    place = (_HERE, path.encode(), _WITH_SUBMOUNTS)
    _call("syscall", _MOUNT_SETATTR, *place, attributes, ctypes.sizeof(attributes))


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, value, 0, 0, 0)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the C library. Raises OSError if it fails."""
    # ctypes would pass a plain int as 32 bits, but a variadic system call reads full registers.
    whole = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*whole) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
