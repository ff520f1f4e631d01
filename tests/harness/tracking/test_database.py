"""The home's own database: it goes where its home goes, and a damaged one is made anew."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.tracking import Mirror, tracking_uri
from harness.tracking.database import opening, own_database
from tests.harness.tracking.helpers import DiskSweep, Reader, train

ARTIFACTS = "file:///home/mlartifacts"


def make(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def opened(home: Path) -> list[str]:
    """What lies in the home once its database is to be opened."""
    with opening(own_database(home), ARTIFACTS):
        return sorted(path.name for path in home.iterdir() if path.name != ".mlflow.lock")


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mlflow.db").write_text("no database, " * 100)
    (tmp_path / "mlflow.db.damaged-1").write_text("an earlier one")
    assert opened(tmp_path) == ["mlflow.db.damaged-1", "mlflow.db.damaged-2"]
    assert "set aside as mlflow.db.damaged-2" in caplog.text
    assert "`bench sync`" in caplog.text


def test_a_database_with_a_damaged_page_is_set_aside(tmp_path: Path) -> None:
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n"
    make(tmp_path / "mlflow.db", "CREATE TABLE experiments (i)", f"INSERT INTO experiments {rows}")
    with (tmp_path / "mlflow.db").open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)
    assert opened(tmp_path) == ["mlflow.db.damaged-1"]


@pytest.mark.parametrize("statements", [[], ["CREATE TABLE experiments (experiment_id)"]], ids=["no table", "no row"])
def test_a_database_that_was_not_made_to_the_end_is_set_aside(tmp_path: Path, statements: list[str]) -> None:
    make(tmp_path / "mlflow.db", "CREATE TABLE alembic_version (version_num)", *statements)
    assert opened(tmp_path) == ["mlflow.db.damaged-1"]


def test_one_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    finished = threading.Event()

    def make_slowly() -> None:
        time.sleep(0.2)
        make(tmp_path / "mlflow.db", "CREATE TABLE runs (artifact_uri, experiment_id)")
        make(tmp_path / "mlflow.db", "CREATE TABLE experiments (experiment_id, artifact_location)")
        make(tmp_path / "mlflow.db", "INSERT INTO experiments VALUES (0, '')")
        finished.set()
        fcntl.flock(lock, fcntl.LOCK_UN)

    with (tmp_path / ".mlflow.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make(tmp_path / "mlflow.db", "CREATE TABLE alembic_version (version_num)")
        thread = threading.Thread(target=make_slowly)
        thread.start()
        assert opened(tmp_path) == ["mlflow.db"]
        assert finished.is_set()
        thread.join()


def test_whose_files_lie_elsewhere_is_not_touched(tmp_path: Path) -> None:
    """Only what lay in a folder of this name moves: not what the user told MLflow to keep in another place."""
    make(
        tmp_path / "mlflow.db",
        "CREATE TABLE experiments (experiment_id, artifact_location)",
        "CREATE TABLE runs (artifact_uri, experiment_id)",
        "INSERT INTO experiments VALUES (1, 'file:///before/mlartifacts'), (2, 's3://bucket/mlartifacts')",
        "INSERT INTO runs VALUES ('file:///before/mlartifacts/a', 1), ('file:///elsewhere/b', 1), ('s3://x', 2)",
    )
    opened(tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        locations = [row[0] for row in connection.execute("SELECT artifact_location FROM experiments")]
        files = [row[0] for row in connection.execute("SELECT artifact_uri FROM runs")]
    assert locations == [ARTIFACTS, "s3://bucket/mlartifacts"]
    assert files == [f"{ARTIFACTS}/a", "file:///elsewhere/b", "s3://x"]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def forget_files() -> None:
    """As a new process: MLflow remembers by its id where a run's files lie, and two homes have runs of the same ids."""
    from mlflow.tracking._tracking_service import utils

    utils._artifact_repos_cache.clear()


@pytest.mark.slow
def test_a_copied_home_leaves_the_original_alone_and_a_moved_one_keeps_its_files(
    tmp_path: Path, new_database: Callable[[Path], str]
) -> None:
    sweep = DiskSweep(tmp_path / "my home")
    sweep.ask()
    train(sweep.start("a"), 1, 2)
    sweep.report("worse")
    new_database(own_database(sweep.home))
    assert Mirror(sweep.path, tracking_uri(sweep.home)).sync() == 4 + 7
    before = files_below(sweep.home)

    shutil.copytree(sweep.home, tmp_path / "copy")
    forget_files()
    copy = DiskSweep(tmp_path / "copy")
    assert Mirror(copy.path, tracking_uri(copy.home)).sync() == 0
    copy.report("undecided", difference_pp=-1.0)
    train(copy.start("b"), 1, 2)
    Mirror(copy.path, tracking_uri(copy.home)).sync()
    assert files_below(sweep.home) == before
    shown = [text for name, text in files_below(copy.home / "mlartifacts").items() if name.endswith("index.html")]
    assert len(shown) == 1
    assert b"undecided" in shown[0]

    sweep.home.rename(tmp_path / "moved")
    forget_files()
    moved = DiskSweep(tmp_path / "moved")
    uri = tracking_uri(moved.home)
    assert Mirror(moved.path, uri).sync() == 0
    reader = Reader(uri)
    assert "index.html" in reader.artifacts(reader.parents()[0])
    assert reader.artifacts(reader.children()["a-s0"]) == {"spec.json"}
    assert not (tmp_path / "my home").exists()


@pytest.mark.long
def test_mlflow_killed_as_it_makes_the_database(sweep: DiskSweep) -> None:
    train(sweep.start("a"), 1, 2)
    program = (
        "import logging, pathlib, sys, harness.tracking as tracking\n"
        "sweep = pathlib.Path(sys.argv[1])\n"
        "print(tracking.Mirror(sweep, tracking.tracking_uri(sweep.parent)).sync())\n"
    )
    command = [sys.executable, "-c", program, str(sweep.path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(command, env=environment)
    database = own_database(sweep.home)
    while not database.exists() or database.stat().st_size < 100_000:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout == "4\n"
    assert "set aside as mlflow.db.damaged-1" in again.stderr
