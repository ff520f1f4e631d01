"""The home's own MLflow database, <home>/mlflow.db. It is made from the records, so a damaged one can be made again.

MLflow stores the absolute address of every run's files. In a copied home, it would write to the files of the original;
in a moved home, it would not find the files. The addresses are therefore rewritten before MLflow reads them.

MLflow takes seconds and many transactions to create or migrate a database, and cannot continue after an interruption.
So both are done under a lock, in a second file that replaces the database once its schema is complete. If that file
exists when the lock is taken, a killed process left it behind.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_log = logging.getLogger(__name__)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SIDES = ("-journal", "-wal", "-shm")
"""The endings of the files that SQLite keeps next to a database."""
_OF_THE_SCHEMA = ("alembic_version", "workspaces")
"""Tables that MLflow's migrations fill even if there are no runs."""
_WAIT_S = 20.0
_CHECKED: set[Path] = set()
"""The databases that this process has opened. MLflow keeps such a file open, so it must not be replaced."""


def own_database(home: Path) -> Path:
    return home.resolve() / "mlflow.db"


@contextmanager
def opening(database: Path, artifacts: str) -> Iterator[None]:
    """Hold the database's lock in this block, once the database has the schema of the installed MLflow.

    artifacts: the address where its runs' files are; the database is changed to say so.
    Raises OSError if the database cannot be used, and SQLAlchemyError if it cannot be migrated.
    """
    with database.with_name(".mlflow.lock").open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if database not in _CHECKED:
            try:
                if _is_damaged(database):
                    _set_aside(database)
                _complete(database)
                _move_along(database, artifacts)
            except sqlite3.DatabaseError as error:  # e.g. locked for too long
                raise OSError(f"{database}: {error}") from error
        yield
        _CHECKED.add(database)


def tagged(database: Path, artifacts: str, tags: Mapping[str, str]) -> str | None:
    """Return the experiment of a run that has all these tags, without MLflow, which takes seconds to start.

    None if there is no such run, if the database cannot be read, or if the files of its runs are stored elsewhere.
    """
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


def _is_damaged(database: Path) -> bool:
    """Return whether SQLite reports damage and no run can be read. Raises OSError if runs can be read."""
    if not database.exists():
        return False
    with closing(sqlite3.connect(database, timeout=_WAIT_S)) as connection:
        try:
            if connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]:
                return False
        except sqlite3.DatabaseError as error:
            # The low byte is the primary code. SQLite's extended codes add details in the bytes above it.
            if error.sqlite_errorcode & 0xFF not in _DAMAGED:
                raise
        with suppress(sqlite3.DatabaseError):
            if connection.execute("SELECT * FROM runs LIMIT 1").fetchall():
                raise OSError(
                    "the file is damaged, but runs in it can be read: restore it from a copy, or move it away"
                )
    return True


def _set_aside(database: Path) -> None:
    number = 1
    while (aside := database.with_name(f"{database.name}.damaged-{number}")).exists():
        number += 1
    # The database is renamed last. After a kill, the next process finds it and chooses the same number.
    for side in (*_SIDES, ""):
        with suppress(FileNotFoundError):
            database.with_name(f"{database.name}{side}").rename(f"{aside}{side}")
    _log.warning(
        f"{database} is damaged: it is set aside as {aside.name}, and a new one is made from the records. `bench sync` "
        "mirrors all sweeps and evaluations again."
    )


def _complete(database: Path) -> None:
    """Give the database the schema of the installed MLflow.

    A new database is created if there is none, or if it is empty because MLflow was stopped while creating it. Raises
    OSError if this MLflow does not know the database's schema.
    """
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base as FirstTables
    from sqlalchemy import event

    making = database.with_name(f".{database.name}.making")
    for side in ("", *_SIDES):
        making.with_name(f"{making.name}{side}").unlink(missing_ok=True)
    before = database if database.exists() else ":memory:"
    with closing(sqlite3.connect(before, timeout=_WAIT_S, isolation_level=None)) as old:
        migrations, revision = ScriptDirectory.from_config(utils._get_alembic_config("")), _revision(old)
        if revision == migrations.get_current_head():
            return
        try:
            migrations.get_revisions(revision or ())
        except CommandError as error:
            raise OSError(f"another version of MLflow made it ({error})") from error
        old.execute("PRAGMA journal_mode = DELETE")  # so that all it holds is in the one file
        if _holds_rows(old):
            # Keep other writers out until the new file replaces this one. An empty database gets no transaction: after
            # a kill, its journal would be applied to the new file.
            old.execute("BEGIN IMMEDIATE")
            with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(making)) as copy:
                source.backup(copy)
        engine = utils.create_sqlalchemy_engine(f"sqlite:///{making}")
        # The hundred commits need not wait for the disk, because the file is synced before it is renamed.
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
        try:
            FirstTables.metadata.create_all(engine)
            utils._upgrade_db(engine)
        finally:
            engine.dispose()
        with making.open("rb") as file:
            os.fsync(file.fileno())
        for side in _SIDES:  # of an earlier database of this name: SQLite would play them back into the new one
            database.with_name(f"{database.name}{side}").unlink(missing_ok=True)
        making.replace(database)


def _revision(connection: sqlite3.Connection) -> str | None:
    """Return the revision of the schema, or None if there is no schema."""
    if "alembic_version" not in _tables(connection):
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _holds_rows(connection: sqlite3.Connection) -> bool:
    """Return whether the database contains anything besides the schema."""
    return any(
        connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchall()
        for table in _tables(connection)
        if table not in _OF_THE_SCHEMA and not table.startswith("sqlite_")
    )


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _move_along(database: Path, artifacts: str) -> None:
    """Replace the addresses of files that were in a folder of this name in another home."""
    name = artifacts.rpartition("/")[2]
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
