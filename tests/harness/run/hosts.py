"""Machines that share a folder, pretended on this one: to each other, their processes are those of another kernel,
whose locks cannot be seen. A dead one is known by its lease only, after seconds instead of minutes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.harness.run import bench

ROOT = Path(__file__).parents[3]
_ON_A_HOST = """
import os
if "PRETENDED_HOST" in os.environ:
    from harness.records import lease
    host = os.environ["PRETENDED_HOST"]
    lease.HERE.kernel = lease.HERE.host = host
    lease.HEARTBEAT_S, lease.STALE_AFTER_S = 0.5, 6.0
    lock_of = lease._lock_of

    def lock_of_a_host(path):
        kernel = lease._parse(lease._read(path) or b"").get("kernel") or host
        return lock_of(path) if kernel.startswith(host + ":") else "free"

    lease._lock_of = lock_of_a_host
"""


def pretend_hosts(folder: Path) -> dict[str, str]:
    """The environment for their processes, to which PRETENDED_HOST is added. In it `bench` is this checkout's, without
    mirror and page."""
    (folder / "bin").mkdir()
    (folder / "sitecustomize.py").write_text(_ON_A_HOST)
    look_often = "import harness.run.shared_sweep as shared_sweep\nshared_sweep.LOOK_EVERY_S = 0.5\n"
    write_command(folder / "bin", "bench", f"#!{sys.executable}\n{look_often}{bench.PROGRAM}")
    paths = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    return os.environ | paths


def write_command(folder: Path, name: str, script: str) -> None:
    """A program in a folder of the PATH."""
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def kill_host(name: str, folder: Path) -> None:
    """Kill all processes of a host at once, as a power cut does. folder: that of `pretend_hosts`."""
    numbers = (int(one.name) for one in Path("/proc").glob("[0-9]*"))
    pids = [pid for pid in numbers if _is_of(pid, name, folder)]
    for blow in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, blow)


def _is_of(pid: int, host: str, folder: Path) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"PRETENDED_HOST={host}" in variables and any(one.startswith(f"PYTHONPATH={folder}:") for one in variables)
