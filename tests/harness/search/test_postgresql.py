"""A search that machines without a common folder share, in a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BenchError, RefusedError
from harness.records import CellRecord
from harness.records.study import read_study
from harness.search.optuna_parts import reporting_storage_errors
from tests.harness.run import bench
from tests.harness.search.fake_cells import FakeCells, search, write_search
from tests.refusals import refuses

ONE_MACHINE = """
import sys
from pathlib import Path
from tests.harness.search.fake_cells import FakeCells, Silent, search_run
path, home, url, trials = sys.argv[1:]
search_run(Path(path), int(trials), FakeCells(), home=Path(home), storage_url=url).run(Silent())
"""


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # its fast shutdown
        self.process.wait(timeout=bench.PATIENCE_S)


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not binaries:
        pytest.skip("no PostgreSQL is installed; `make postgresql` does it")
    # It refuses to run as root.
    user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        if user:
            shutil.chown(folder, "postgres")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        data = f"{folder}/data"
        subprocess.run(
            [binaries[-1] / "initdb", "-D", data, "-A", "trust", "-U", "bench", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            **user,
        )
        options = ["-D", data, "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        process = subprocess.Popen([binaries[-1] / "postgres", *options], cwd=folder, stderr=subprocess.DEVNULL, **user)
        running = Server(f"postgresql://bench@127.0.0.1:{port}/postgres", process)
        try:
            deadline_s = time.monotonic() + bench.PATIENCE_S
            asked = [str(binaries[-1] / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(asked).returncode:
                assert process.poll() is None and time.monotonic() < deadline_s
                time.sleep(0.05)
            yield running
        finally:
            running.stop()


def test_machines_that_start_at_one_moment_share_a_search(tmp_path: Path, server: Server) -> None:
    path = write_search(tmp_path)
    homes = [tmp_path / "one", tmp_path / "two"]
    together = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_MACHINE, str(path), str(home), server.url, "6"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for home in homes
    ]
    for process in together:
        _, stderr = process.communicate(timeout=bench.PATIENCE_S)
        assert process.returncode == 0, stderr
    cells = [cell.name for home in homes for cell in home.glob("found/cells/*")]
    assert len(cells) == len(set(cells)), "no trial on two machines"

    trials = max((read_study(home / "found").trials for home in homes), key=len)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len(trials) in (6, 7), "each of two may start the last one"
    assert sum(trial.is_default for trial in trials) == 1


def test_a_database_that_goes_away_ends_the_search_with_its_cause(tmp_path: Path, server: Server) -> None:
    class Stopping(FakeCells):
        def begun(self, cell: CellRecord) -> None:
            server.stop()

    with refuses(BenchError, "search.storage_lost"), reporting_storage_errors(server.url):
        search(write_search(tmp_path), 2, Stopping(), storage_url=server.url)
    with refuses(RefusedError, "search.storage_cannot_be_opened"):
        search(write_search(tmp_path), 2, storage_url=server.url)
