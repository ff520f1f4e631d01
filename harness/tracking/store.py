"""MLflow's tables in SQLite and PostgreSQL, written by many rows at a time: a long sweep has millions of points, and
through MLflow's objects each takes ten times as long. An MLflow server takes no such rows.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from harness.tracking.curves import Curve, Curves

_PARAMS = {"key": "text", "value": "text", "run_uuid": "text"}
_POINT = {"key": "text", "value": "float8", "timestamp": "bigint", "step": "bigint"}
_METRICS = {**_POINT, "run_uuid": "text", "is_nan": "bool"}
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
    # A commit does not wait for the disk. The last one of a sync does, that of the tag which says that the mirror is
    # complete, and then all that was committed before it is on the disk too.
    "postgresql": "SET LOCAL synchronous_commit = off",
}
_POINTS_TOGETHER = 250_000
"""Points of runs that are written in one transaction: seconds of work, during which nobody else writes to SQLite."""
_THREADS = 2
"""That write to PostgreSQL. One process of a server serves each connection."""


class Writing:
    """Writes runs that MLflow's client makes and ends, all from one thread, and the points of each in between.

    SQLite        all that this thread writes is in transactions of many runs: of a run, everything is there or nothing
    PostgreSQL    a few threads write points, each with a connection of its own, while runs are made and ended here, so
                  that neither the server nor this process waits for the other
    a server      everything is written as it comes
    """

    def __init__(self, client: Any) -> None:
        store = _store(client)
        self._client = client
        self._has_threads = store is not None and store.db_type == "postgresql"
        self._transaction = ExitStack()
        self._sending: deque[_Sending] = deque()
        self._n_points = 0

    @classmethod
    @contextmanager
    def to(cls, client: Any) -> Iterator[Writing]:
        """Leaving waits until no thread writes. Raises MlflowException and SQLAlchemyError."""
        writing = cls(client)
        try:
            with writing._transaction:
                writing._begin()
                yield writing
                while writing._sending:
                    writing._end_first()
        finally:
            wait(sending.n_points for sending in writing._sending)

    def send(self, name: str, send: Callable[[], int], end: Callable[[int], None]) -> None:
        """Write the points of the run `name`, which is made, with `send`, and once they are in the database let `end`
        say so, given their number. Runs end in the order in which they are sent."""
        if not self._has_threads:
            n_points = send()
            end(n_points)
            self._n_points += n_points
            if self._n_points >= _POINTS_TOGETHER:
                self._begin()
            return
        while len(self._sending) == _THREADS:
            self._end_first()
        self._begin()  # so that another connection sees the run
        self._sending.append(_Sending(name, _in_thread(send), end))

    def _end_first(self) -> None:
        from mlflow.exceptions import MlflowException

        first = self._sending[0]
        try:
            n_points = first.n_points.result()
        except MlflowException as error:
            raise MlflowException(f"{first.name}: {error.message}") from error
        self._sending.popleft()
        first.end(n_points)

    def _begin(self) -> None:
        """A transaction, after the one before."""
        self._transaction.close()
        self._n_points = 0
        self._transaction.enter_context(one_transaction(self._client))


class _Sending(NamedTuple):
    """The points of a run that a thread writes."""

    name: str
    n_points: Future[int]
    end: Callable[[int], None]


def _in_thread(function: Callable[[], int]) -> Future[int]:
    future: Future[int] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)

    # A daemon: a server that does not answer must not keep the process alive.
    threading.Thread(target=run, name="mlflow-points", daemon=True).start()
    return future


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
        connection.exec_driver_sql(_SETTINGS[store.db_type])
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
    driver = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.write(b"PGCOPY\n\xff\r\n\x00" + bytes(8))
        for key, curve in curves.items():
            copy.write(_binary_rows(key.encode(driver.info.encoding), run_id.encode(), curve))
        copy.write(b"\xff\xff")


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
