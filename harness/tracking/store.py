"""A run's points in an MLflow database that is SQLite or PostgreSQL, all in one statement of SQLAlchemy.

`MlflowClient.log_batch` makes two objects of each point: 190 µs of processor time, beside 10 to 15 µs here. A sweep of
200 cells x 500 steps has seven million points (`benchmarks/growth.py`), so its mirror would take over twenty minutes
instead of two. All else goes through the client, and so do the points that a server gets.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from harness.tracking.curves import Curves

if TYPE_CHECKING:
    from sqlalchemy import Engine

_COLUMNS = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")
"""Of MLflow's tables `metrics` and `latest_metrics`."""
_BUSY_S = 20.0
"""How long SQLite may be written by somebody else, as MLflow has it."""


def add_points(uri: str, run_id: str, curves: Curves) -> bool:
    """Add points to a run's curves as `log_batch` does: a point that is there already is not added twice.

    Values are finite, and keys legal names. Return False, and do nothing, if `uri` is a server, or a database that has
    no such statement. Raise SQLAlchemyError.
    """
    from sqlalchemy import column, table, tuple_
    from sqlalchemy.dialects import postgresql, sqlite

    if (engine := _engine(uri)) is None:
        return False
    if not curves:
        return True
    # In the order of the largest index, so that neighbours there are written together.
    ordered = {key: curves[key].distinct() for key in sorted(curves)}
    insert = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert
    old = table("latest_metrics", *map(column, _COLUMNS)).c
    latest = insert(old.key.table)
    new = latest.excluded
    latest = latest.on_conflict_do_update(
        index_elements=["key", "run_uuid"],
        set_={name: new[name] for name in ("value", "timestamp", "step", "is_nan")},
        # MLflow shows the value of the latest step as a metric's value, and of that step the latest.
        where=tuple_(new.step, new.timestamp, new.value) > tuple_(old.step, old.timestamp, old.value),
    )
    points = insert(table("metrics", *map(column, _COLUMNS))).on_conflict_do_nothing()
    with engine.begin() as connection:
        for statement, rows in (
            (points, [(key, *point, False, run_id) for key, curve in ordered.items() for point in curve.points()]),
            (latest, [(key, *curve.last, False, run_id) for key, curve in ordered.items()]),
        ):
            # As text: SQLAlchemy would make a mapping of each row.
            connection.exec_driver_sql(str(statement.compile(engine)), rows)
    return True


@cache
def _engine(uri: str) -> Engine | None:
    """Return an engine that holds no connection in between, or None where points go through MLflow's client."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    if uri.startswith("sqlite:"):
        return create_engine(uri, poolclass=NullPool, connect_args={"timeout": _BUSY_S})
    # With parameters by their place, as SQLite has them.
    return create_engine(uri, poolclass=NullPool, paramstyle="format") if uri.startswith("postgresql") else None
