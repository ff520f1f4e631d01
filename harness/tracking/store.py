"""Write points of runs to an MLflow database that is SQLite or PostgreSQL, in one SQLAlchemy statement.

`MlflowClient.log_batch` creates two objects per point, which takes 190 µs of processor time, compared with 10 to 15 µs
here. A sweep of 200 cells x 500 steps has seven million points (`benchmarks/growth.py`), so mirroring it would take
over twenty minutes instead of two. Everything else goes through the client, and so do points for a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from harness.tracking.curves import Curves

if TYPE_CHECKING:
    from sqlalchemy import Engine

_COLUMNS = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")
"""The columns of MLflow's tables `metrics` and `latest_metrics`."""
_BUSY_S = 20.0
"""How long to wait while another process writes to SQLite. MLflow uses the same time."""


def add_points(uri: str, curves_of_runs: Mapping[str, Curves]) -> bool:
    """Add points to the curves of runs, by run id. Like `log_batch`, it does not add an existing point again.

    All points are added in one transaction, so that a database page that several runs change is written once. Values
    must be finite, and names valid in MLflow. Returns False, and adds nothing, if `uri` is a server or another kind of
    database. Raises SQLAlchemyError.
    """
    from sqlalchemy import column, table, tuple_
    from sqlalchemy.dialects import postgresql, sqlite

    if (engine := _engine(uri)) is None:
        return False
    if not any(curves_of_runs.values()):
        return True
    insert = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert
    old = table("latest_metrics", *map(column, _COLUMNS)).c
    latest = insert(old.key.table)
    new = latest.excluded
    latest = latest.on_conflict_do_update(
        index_elements=["key", "run_uuid"],
        set_={name: new[name] for name in ("value", "timestamp", "step", "is_nan")},
        # MLflow shows the value of the last step as a metric's value and, among several values of that step, the
        # latest.
        where=tuple_(new.step, new.timestamp, new.value) > tuple_(old.step, old.timestamp, old.value),
    )
    points = insert(table("metrics", *map(column, _COLUMNS))).on_conflict_do_nothing()
    # The statements are compiled to text, because SQLAlchemy would otherwise create a mapping for each row.
    add, show = str(points.compile(engine)), str(latest.compile(engine))
    with engine.begin() as connection:
        for run_id, curves in curves_of_runs.items():
            # The rows are in the order of the largest index, so that neighbouring entries are written together.
            ordered = {key: curves[key].distinct() for key in sorted(curves)}
            rows = [(key, *point, False, run_id) for key, curve in ordered.items() for point in curve.points()]
            if rows:
                connection.exec_driver_sql(add, rows)
                connection.exec_driver_sql(show, [(key, *each.last, False, run_id) for key, each in ordered.items()])
    return True


@cache
def _engine(uri: str) -> Engine | None:
    """Return an engine that keeps no connection open, or None if points must go through MLflow's client."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    if uri.startswith("sqlite:"):
        return create_engine(uri, poolclass=NullPool, connect_args={"timeout": _BUSY_S})
    # Parameters are positional, as for SQLite.
    return create_engine(uri, poolclass=NullPool, paramstyle="format") if uri.startswith("postgresql") else None
