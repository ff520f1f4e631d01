"""The home's own database, <home>/mlflow.db. It goes where its home goes, and as it is made from the records, a damaged
one is made anew.

MLflow keeps the absolute address of every run's files. A home that was copied would write into the files of the
original, and one that was moved would not find them: so the addresses are rewritten before MLflow reads them.

Nobody makes this database while it is looked at: whoever opens it waits for its turn, so one that is not whole was left
by a process that was killed, or by a disk that was full."""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WAIT_S = 20.0
_CHECKED: set[Path] = set()
"""Databases that this process has opened: MLflow holds on to a file, so that none may take its place."""


def own_database(home: Path) -> Path:
    return home.resolve() / "mlflow.db"


@contextmanager
def opening(database: Path, artifacts: str) -> Iterator[None]:
    """Open the database in here: it is whole or absent, and the files of its runs lie in the folder `artifacts` (an
    address). Raises OSError."""
    with database.with_name(".mlflow.lock").open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if database not in _CHECKED:
            if _is_torn(database):
                aside = _set_aside(database)
                _log.warning(
                    f"{database} is damaged: it is set aside as {aside.name}, and a new one is made from the records. "
                    "`bench sync` mirrors all sweeps and evaluations again."
                )
            _move_along(database, artifacts)
        yield
        _CHECKED.add(database)


def tagged(database: Path, artifacts: str, tags: Mapping[str, str]) -> str | None:
    """The experiment of a run that carries all these tags; None if there is none, if the database cannot be read, or if
    the files of its runs lie elsewhere. MLflow, which takes seconds to start, is not asked."""
    if not database.exists():
        return None
    carried = " AND ".join(
        "EXISTS (SELECT 1 FROM tags t WHERE t.run_uuid = r.run_uuid AND t.key = ? AND t.value = ?)" for _ in tags
    )
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)) as connection:
            found = connection.execute(
                "SELECT e.experiment_id FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id"
                f" WHERE r.lifecycle_stage = 'active' AND e.artifact_location = ? AND {carried}",
                [artifacts, *(word for tag in tags.items() for word in tag)],
            ).fetchone()
    except sqlite3.DatabaseError:  # `opening` says what is wrong with it
        return None
    return None if found is None else str(found[0])


def _is_torn(database: Path) -> bool:
    """Whether SQLite cannot read it, or MLflow was stopped while it made it: the first experiment comes last."""
    if not database.exists() or database.stat().st_size == 0:
        return False
    try:
        with closing(sqlite3.connect(database, timeout=_WAIT_S)) as connection:
            [(verdict,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
            return verdict != "ok" or not _has_experiments(connection)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode not in _DAMAGED:  # e.g. locked for too long
            raise OSError(f"{database}: {error}") from error
        return True


def _has_experiments(connection: sqlite3.Connection) -> bool:
    tables = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'experiments'").fetchall()
    return bool(tables and connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchall())


def _set_aside(database: Path) -> Path:
    """Rename it; returns where it is now. SQLite's own files beside it go as SQLite opens it."""
    number = 1
    while (aside := database.with_name(f"{database.name}.damaged-{number}")).exists():
        number += 1
    return database.rename(aside)


def _move_along(database: Path, artifacts: str) -> None:
    """Rewrite the addresses of files that lay in a folder of this name, in another home."""
    if not database.exists() or database.stat().st_size == 0:
        return
    name = artifacts.rpartition("/")[2]
    try:
        with closing(sqlite3.connect(database, timeout=_WAIT_S)) as connection, connection:
            moved = connection.execute(
                "SELECT experiment_id, artifact_location FROM experiments"
                " WHERE artifact_location LIKE 'file:%/' || ? AND artifact_location != ?",
                (name, artifacts),
            ).fetchall()
            for experiment, before in moved:
                connection.execute(
                    "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (artifacts, experiment)
                )
                connection.execute(
                    "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?)"
                    " WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
                    (artifacts, len(before) + 1, experiment, len(before), before),
                )
    except sqlite3.DatabaseError as error:
        raise OSError(f"{database}: {error}") from error
