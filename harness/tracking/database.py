"""The home's own database, <home>/mlflow.db. It goes where its home goes, and as it is made from the records, a damaged
one is made anew.

MLflow keeps the absolute address of every run's files. A home that was copied would write into the files of the
original, and one that was moved would not find them: so the addresses are rewritten before MLflow reads them.

Nobody makes this database while it is looked at: whoever opens it waits for its turn, so one that is not whole was left
by a process that was killed, or by a disk that was full.

Points of curves go into MLflow's tables by the column, here and on PostgreSQL: a long sweep has millions of them, and
through MLflow's objects each takes ten times as long.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from harness.tracking.curves import Curve, Curves

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


_PARAMS = {"key": "text", "value": "text", "run_uuid": "text"}
_METRICS = {
    "key": "text",
    "value": "float8",
    "timestamp": "bigint",
    "step": "bigint",
    "run_uuid": "text",
    "is_nan": "bool",
}
"""Columns of MLflow's tables, with PostgreSQL's names of their types."""
_COPY = f"COPY metrics ({', '.join(_METRICS)}) FROM STDIN (FORMAT BINARY)"
_UNLESS_THERE = "ON CONFLICT DO NOTHING"
_IF_LATER = """
    ON CONFLICT (key, run_uuid) DO UPDATE
    SET value = excluded.value, timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan
    WHERE (excluded.step, excluded.timestamp, excluded.value)
        > (latest_metrics.step, latest_metrics.timestamp, latest_metrics.value)
"""
"""What MLflow shows as the last value of a key: that of the latest step, and there the latest."""
_TURN = threading.Lock()
"""Two sweeps may be mirrored in one process, each by a thread of its own."""
_SETTINGS = {
    # Pages that many runs change in one transaction are written once.
    "sqlite": "PRAGMA cache_size = -262144",
    # The mirror is up to date once a tag of the parent run says so, and the server has all that was committed before
    # on its disk before that commit returns.
    "postgresql": "SET LOCAL synchronous_commit = off",
}
"""What makes a long transaction cheaper."""


@contextmanager
def one_transaction(client: Any) -> Iterator[None]:
    """Whatever MLflow's client writes in here is in the database afterwards, or nothing of it. Each call alone would
    be some transactions, and on SQLite each of those waits for the disk. A server's calls are made as they come.

    Raises SQLAlchemyError and MlflowException.
    """
    store = _store(client)
    if store is None:
        yield
        return
    with _TURN, store.ManagedSessionMaker(read_only=False) as session:
        session.connection().exec_driver_sql(_SETTINGS[store.db_type])

        depth, ours, each_its_own = 0, threading.get_ident(), store.ManagedSessionMaker

        @contextmanager
        def the_same(read_only: bool = True) -> Iterator[Any]:
            nonlocal depth
            if threading.get_ident() != ours:  # the store is shared by all clients of the process
                with each_its_own(read_only) as other:
                    yield other
                return
            depth += 1
            yield session
            session.flush()
            depth -= 1
            if not depth:  # as after a session of its own, so that the next call reads what the database made of it
                session.expunge_all()

        def refuse() -> None:
            raise sys.exception() or AssertionError("nothing to undo")

        # MLflow commits some changes itself, and undoes and repeats those that another process was quicker to make.
        session.commit, session.rollback = session.flush, refuse
        store.ManagedSessionMaker = the_same
        try:
            yield
        finally:
            store.ManagedSessionMaker = each_its_own
            del session.commit, session.rollback


def _store(client: Any) -> Any | None:
    """MLflow's store, if it is a database that takes our statements; None for others, and for a server."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = client._tracking_client.store
    return store if isinstance(store, SqlAlchemyStore) and store.db_type in ("sqlite", "postgresql") else None


def add_metrics(client: Any, run_id: str, curves: Curves, is_first: bool = False) -> bool:
    """Add points to a run's curves as MLflow's `log_batch` does: a point that is there already is not added twice.
    is_first: the run has no points yet, and nobody else adds any. Returns False, and does nothing, if the client talks
    to a server, or to a database that takes no such statement.

    Values are finite, and keys legal names. Raises SQLAlchemyError."""
    if (store := _store(client)) is None:
        return False
    if not curves:
        return True
    # In the order of the largest index, so that neighbours there are written together.
    ordered = {key: curves[key].distinct() for key in sorted(curves)}
    latest = [(key, *curve.last, run_id, False) for key, curve in ordered.items()]
    with store.ManagedSessionMaker(read_only=False) as session:
        connection = session.connection()
        if is_first and connection.dialect.driver == "psycopg":
            _copy(connection, run_id, ordered)
        else:
            rows = [(key, *point, run_id, False) for key, curve in ordered.items() for point in curve.points()]
            _insert(connection, "metrics", _METRICS, rows, _UNLESS_THERE)
        _insert(connection, "latest_metrics", _METRICS, latest, _IF_LATER)
    return True


def add_params(client: Any, run_id: str, params: Mapping[str, str]) -> bool:
    """Add parameters to a run as MLflow's `log_batch` does, but one that is there already stays as it is. Returns and
    raises as `add_metrics`; names are legal, and values short enough."""
    if (store := _store(client)) is None:
        return False
    if not params:
        return True
    with store.ManagedSessionMaker(read_only=False) as session:
        rows = [(*param, run_id) for param in params.items()]
        _insert(session.connection(), "params", _PARAMS, rows, _UNLESS_THERE)
    return True


def _insert(connection: Any, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]], end: str) -> None:
    """Insert rows in one statement, whose end says what becomes of those that are there already."""
    from sqlalchemy import text

    into = f"INSERT INTO {table} ({', '.join(columns)})"
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"{into} VALUES ({', '.join('?' for _ in columns)}) {end}", rows)
    else:  # for each row of many a server would be told anew
        arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in columns.items())
        by_column = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
        connection.execute(text(f"{into} SELECT * FROM unnest({arrays}) {end}"), by_column)


def _copy(connection: Any, run_id: str, curves: Curves) -> None:
    """Write points, none of which is there, in PostgreSQL's binary format (see its documentation of COPY): each field
    comes after its length in bytes, and numbers, which neither side turns into text, in the network's byte order."""
    from sqlalchemy.exc import DBAPIError

    driver = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.write(b"PGCOPY\n\xff\r\n\x00" + bytes(8))
            for key, curve in curves.items():
                copy.write(_binary_rows(key.encode(driver.info.encoding), run_id.encode(), curve))
            copy.write(b"\xff\xff")
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(_COPY, None, error) from error


def _binary_rows(key: bytes, run_id: bytes, curve: Curve) -> bytes:
    import numpy as np

    fields: list[tuple[Any, str]] = [
        *((key, f"S{len(key)}"), (curve.values, ">f8"), (curve.times_ms, ">i8"), (curve.steps, ">i8")),
        *((run_id, f"S{len(run_id)}"), (False, "?")),
    ]
    layout = [("n_fields", ">i2")]
    for place, (_, kind) in enumerate(fields):
        layout += [(f"n_bytes_{place}", ">i4"), (f"value_{place}", kind)]
    rows = np.empty(len(curve.steps), dtype=layout)
    rows["n_fields"] = len(fields)
    for place, (value, kind) in enumerate(fields):
        rows[f"n_bytes_{place}"] = np.dtype(kind).itemsize
        rows[f"value_{place}"] = value
    return rows.tobytes()


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
