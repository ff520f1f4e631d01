"""A run's points in an MLflow database that is SQLite or PostgreSQL, all in one statement of SQLAlchemy.

`MlflowClient.log_batch` makes two objects of each point: 190 µs of processor time, beside 10 µs here. A sweep of 200
cells x 500 steps has millions of points, so its mirror would take a quarter of an hour instead of one and a half
minutes (`benchmarks/growth.py`). All else goes through the client, and so do the points that a server gets.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from harness.tracking.curves import Curves

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table

_BUSY_S = 20.0
"""How long SQLite may be written by somebody else, as MLflow has it."""


def add_points(uri: str, run_id: str, curves: Curves) -> bool:
    """Add points to a run's curves as `log_batch` does: a point that is there already is not added twice.

    Values are finite, and keys legal names. Return False, and do nothing, if `uri` is a server, or a database that has
    no such statement. Raise SQLAlchemyError.
    """
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric
    from sqlalchemy import tuple_

    if (engine := _engine(uri)) is None:
        return False
    if not curves:
        return True
    # In the order of the largest index, so that neighbours there are written together.
    ordered = {key: curves[key].distinct() for key in sorted(curves)}
    latest = _insert(engine, SqlLatestMetric.__table__)
    new, old = latest.excluded, SqlLatestMetric.__table__.c
    # MLflow shows the value of the latest step as a metric's value, and of that step the latest.
    latest = latest.on_conflict_do_update(
        index_elements=[old.key, old.run_uuid],
        set_={name: new[name] for name in ("value", "timestamp", "step", "is_nan")},
        where=tuple_(new.step, new.timestamp, new.value) > tuple_(old.step, old.timestamp, old.value),
    )
    with engine.begin() as connection:
        points = [_row(run_id, key, point) for key, curve in ordered.items() for point in curve.points()]
        connection.execute(_insert(engine, SqlMetric.__table__).on_conflict_do_nothing(), points)
        connection.execute(latest, [_row(run_id, key, curve.last) for key, curve in ordered.items()])
    return True


@cache
def _engine(uri: str) -> Engine | None:
    """Return an engine that holds no connection in between, or None where points go through MLflow's client."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    if uri.startswith("sqlite:"):
        return create_engine(uri, poolclass=NullPool, connect_args={"timeout": _BUSY_S})
    return create_engine(uri, poolclass=NullPool) if uri.startswith("postgresql") else None


def _insert(engine: Engine, table: Table) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    return (sqlite if engine.dialect.name == "sqlite" else postgresql).insert(table)


def _row(run_id: str, key: str, point: tuple[float, int, int]) -> dict[str, Any]:
    value, at_ms, step = point
    return {"run_uuid": run_id, "key": key, "value": value, "timestamp": at_ms, "step": step, "is_nan": False}
