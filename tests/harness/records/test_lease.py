from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.records import lease
from harness.records.lease import STALE_AFTER_S, LeaseTakenError, hold_lease, is_leased

ROOT = Path(__file__).parents[3]


@contextmanager
def other_process_holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    code = (
        "import sys, time; from pathlib import Path; from harness.records.lease import hold_lease\n"
        "with hold_lease(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_lease_lasts_as_long_as_it_is_held(tmp_path: Path) -> None:
    assert not is_leased(tmp_path)
    with hold_lease(tmp_path):
        assert is_leased(tmp_path)
    assert not is_leased(tmp_path)
    with hold_lease(tmp_path):
        assert is_leased(tmp_path)


def test_a_failure_gives_the_lease_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_lease(tmp_path):
        raise ZeroDivisionError
    assert not is_leased(tmp_path)


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert not is_leased(tmp_path / "none")
    (tmp_path / "file").touch()
    assert not is_leased(tmp_path / "file" / "cell")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_processes_exclude_each_other_until_one_is_killed(tmp_path: Path) -> None:
    with other_process_holding(tmp_path) as owner:
        assert is_leased(tmp_path)
        with (
            pytest.raises(LeaseTakenError, match=f"process {owner.pid} on {socket.gethostname()}"),
            hold_lease(tmp_path),
        ):
            pytest.fail("two owners")
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert not is_leased(tmp_path)
        with hold_lease(tmp_path):
            assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()


def test_who_asks_does_not_keep_a_runner_out(tmp_path: Path) -> None:
    """`is_leased` holds a shared lock for an instant; here the instant is long."""
    with (tmp_path / "lease.json").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with hold_lease(tmp_path):
            assert is_leased(tmp_path)


def write_owner(folder: Path, host: str, age_s: float) -> None:
    owner = {"host": host, "pid": 1, "heartbeat_s": time.time() - age_s}
    (folder / "lease.json").write_text(json.dumps(owner))


def test_a_fresh_heartbeat_of_another_machine_is_respected(tmp_path: Path) -> None:
    """Machines that share a folder may not share its locks."""
    write_owner(tmp_path, "elsewhere", age_s=STALE_AFTER_S - 5)
    assert is_leased(tmp_path)
    with pytest.raises(LeaseTakenError, match="on another machine \\(process 1 on elsewhere\\)"), hold_lease(tmp_path):
        pytest.fail("two owners")
    assert json.loads((tmp_path / "lease.json").read_text())["host"] == "elsewhere"


def test_a_stale_lease_is_taken_over(tmp_path: Path) -> None:
    write_owner(tmp_path, "elsewhere", age_s=STALE_AFTER_S + 5)
    assert not is_leased(tmp_path)
    with hold_lease(tmp_path):
        assert json.loads((tmp_path / "lease.json").read_text())["host"] == socket.gethostname()


def test_a_fresh_heartbeat_of_a_dead_process_here_counts_for_nothing(tmp_path: Path) -> None:
    write_owner(tmp_path, socket.gethostname(), age_s=0)
    assert not is_leased(tmp_path)
    with hold_lease(tmp_path):
        pass


def test_a_torn_lease_file_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text('{"host": "else')
    assert not is_leased(tmp_path)
    with hold_lease(tmp_path):
        pass


def test_the_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.01)

    def heartbeat() -> float:
        for _ in range(100):
            owner = lease._read(tmp_path / "lease.json")
            if owner is not None:
                return float(owner["heartbeat_s"])
        pytest.fail("no heartbeat was ever complete")

    with hold_lease(tmp_path):
        time.sleep(0.05)
        first = heartbeat()
        time.sleep(0.1)
        assert heartbeat() > first


@pytest.mark.parametrize(
    "content", ["[]", "1", '{"host": "elsewhere"}', '{"host": 1, "pid": 2, "heartbeat_s": 3}', "\udcff"]
)
def test_what_is_no_lease_of_ours_holds_nobody_up(tmp_path: Path, content: str) -> None:
    (tmp_path / "lease.json").write_bytes(content.encode(errors="surrogateescape"))
    assert not is_leased(tmp_path)
    with hold_lease(tmp_path):
        pass
