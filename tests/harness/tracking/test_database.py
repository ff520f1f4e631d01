"""The home's own database: it goes where its home goes, it appears complete, and a damaged one is made anew."""

from __future__ import annotations

import fcntl
import json
import shutil
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
from harness.tracking.database import _set_aside, opening, own_database
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


def names(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


@pytest.mark.slow
def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mlflow.db").write_text("no database, " * 100)
    (tmp_path / "mlflow.db.damaged-1").write_text("an earlier one")
    assert opened(tmp_path) == ["mlflow.db", "mlflow.db.damaged-1", "mlflow.db.damaged-2"]
    assert "mlflow.db.damaged-2" in caplog.text


def test_files_of_sqlite_go_with_their_database(tmp_path: Path) -> None:
    for name in ("mlflow.db", "mlflow.db-wal", "mlflow.db-shm"):
        (tmp_path / name).write_text(name)
    _set_aside(tmp_path / "mlflow.db")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "mlflow.db.damaged-1": "mlflow.db",
        "mlflow.db.damaged-1-wal": "mlflow.db-wal",
        "mlflow.db.damaged-1-shm": "mlflow.db-shm",
    }


@pytest.mark.slow
@pytest.mark.parametrize("runs", [0, 1])
def test_a_damaged_database_is_set_aside_unless_a_run_can_be_read(tmp_path: Path, runs: int) -> None:
    database = own_database(tmp_path)
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n"
    made = ["CREATE TABLE runs (i)", *["INSERT INTO runs VALUES (1)"] * runs]
    make(database, *made, "CREATE TABLE metrics (i)", f"INSERT INTO metrics {rows}")
    with database.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)
    damaged = database.read_bytes()
    if runs:
        with pytest.raises(OSError, match="runs in it can be read"):
            opened(tmp_path)
        assert database.read_bytes() == damaged
    else:
        assert opened(tmp_path) == ["mlflow.db", "mlflow.db.damaged-1"]
        assert (tmp_path / "mlflow.db.damaged-1").read_bytes() == damaged


@pytest.mark.slow
@pytest.mark.parametrize("statements", [[], ["CREATE TABLE experiments (experiment_id)"]], ids=["no table", "no row"])
def test_a_database_that_mlflow_did_not_make_to_the_end_is_made_anew(tmp_path: Path, statements: list[str]) -> None:
    """It holds nothing, so nothing is set aside; and what a killed process was making goes away."""
    make(tmp_path / "mlflow.db", "CREATE TABLE alembic_version (version_num)", *statements)
    (tmp_path / ".mlflow.db.making").write_text("half")
    (tmp_path / ".mlflow.db.making-journal").write_text("its journal")
    assert opened(tmp_path) == ["mlflow.db"]
    assert {"experiments", "runs", "metrics", "latest_metrics"} <= names(tmp_path / "mlflow.db")


@pytest.mark.slow
def test_files_that_an_earlier_database_left_do_not_harm_the_new_one(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "earlier", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE earlier (i)")
        shutil.copy(tmp_path / "earlier-wal", tmp_path / "mlflow.db-wal")
    (tmp_path / "earlier").unlink()
    assert opened(tmp_path) == ["mlflow.db"]
    assert "runs" in names(tmp_path / "mlflow.db")
    assert "earlier" not in names(tmp_path / "mlflow.db")


@pytest.mark.slow
def test_of_a_newer_mlflow_or_of_another_program_nothing_is_lost(
    tmp_path: Path, new_database: Callable[[Path], str]
) -> None:
    database = own_database(tmp_path)
    new_database(database)
    make(database, "UPDATE alembic_version SET version_num = 'newer'")
    before = database.read_bytes()
    with pytest.raises(OSError, match="newer"):
        opened(tmp_path)
    assert database.read_bytes() == before
    database.unlink()
    make(database, "CREATE TABLE mine (i)", "INSERT INTO mine VALUES (1)")
    assert opened(tmp_path) == ["mlflow.db"]
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT i FROM mine").fetchall() == [(1,)]


@pytest.mark.slow
def test_one_that_another_process_is_making_is_waited_for(tmp_path: Path, new_database: Callable[[Path], str]) -> None:
    finished = threading.Event()

    def make_slowly() -> None:
        time.sleep(0.2)
        new_database(tmp_path / "mlflow.db")
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


@pytest.mark.slow
def test_whose_files_lie_elsewhere_is_not_touched(tmp_path: Path, new_database: Callable[[Path], str]) -> None:
    """Only what lay in a folder of this name moves: not what the user told MLflow to keep in another place."""
    new_database(tmp_path / "mlflow.db")
    make(
        tmp_path / "mlflow.db",
        "DELETE FROM experiments WHERE experiment_id > 0",
        "DELETE FROM runs",
        "INSERT INTO experiments (experiment_id, name, artifact_location) VALUES"
        " (11, 'a', 'file:///before/mlartifacts'), (12, 'b', 's3://bucket/mlartifacts')",
        "INSERT INTO runs (run_uuid, artifact_uri, experiment_id) VALUES"
        " ('1', 'file:///before/mlartifacts/a', 11), ('2', 'file:///elsewhere/b', 11), ('3', 's3://x', 12)",
    )
    opened(tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        locations = connection.execute("SELECT artifact_location FROM experiments WHERE experiment_id > 0").fetchall()
        files = connection.execute("SELECT artifact_uri FROM runs ORDER BY run_uuid").fetchall()
    assert locations == [(ARTIFACTS,), ("s3://bucket/mlartifacts",)]
    assert files == [(f"{ARTIFACTS}/a",), ("file:///elsewhere/b",), ("s3://x",)]


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


@pytest.mark.slow
def test_a_kill_while_the_database_is_made_or_migrated_loses_nothing(sweep: DiskSweep, tmp_path: Path) -> None:
    train(sweep.start("a"), 1, 2)
    (tmp_path / "workplace").mkdir()
    home = tmp_path / "home"
    home.mkdir()
    sweep.path.rename(home / sweep.path.name)
    folders = [str(home / sweep.path.name), str(tmp_path / "workplace")]
    command = [sys.executable, "-m", "tests.harness.tracking.killed", *folders]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["home"], row["ended"]) for row in rows} == {("home", -9), ("home", 130), ("old", -9), ("old", 130)}
    (runs,) = {tuple(row["left"]["runs"]) for row in rows if row["home"] == "old"}
    for row in rows:
        is_old = row["home"] == "old"
        assert row["left"].get("integrity", "ok") == "ok", row
        assert is_old or row["left"].get("tables", row["database"]["tables"]) == row["database"]["tables"], row
        assert row["files"] == [".mlflow.lock", "mlartifacts", "mlflow.db", sweep.path.name], row
        assert row["database"]["integrity"] == "ok", row
        assert row["sent"] == (0 if is_old else 4), row
        assert not is_old or tuple(row["database"]["runs"]) == runs, row
