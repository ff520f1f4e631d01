"""Many points at a time in MLflow's database, as MLflow itself would have written them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.tracking import Mirror
from harness.tracking.curves import Curves, joined, value_curves
from harness.tracking.store import add_points
from tests.harness.search.test_postgresql import Server, server  # noqa: F401 - a fixture
from tests.harness.tracking.helpers import DiskSweep, Reader, train

METRICS = [
    ("loss", 0.5, 2_000, 2),
    ("loss", 0.25, 1_000, 1),
    ("reward", 1.0, 1_000, 1),
    ("reward", 2.0, 1_000, 1),  # as a point made anew at the same time: MLflow keeps both
    ("loss", 0.5, 2_000, 2),
    ("größe", -1e-300, 1_700_000_000_000, 3_000_000_000),
]
SOME_THERE = METRICS[:1]
LATER = [("loss", 0.125, 3_000, 3), ("reward", 9.0, 900, 1)]


@pytest.mark.slow
def test_points_written_at_once_are_those_that_mlflow_writes(tmp_path: Path) -> None:
    require_written_alike(f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.mark.slow
def test_points_written_at_once_on_postgresql(server: Server) -> None:  # noqa: F811 - the fixture
    require_written_alike(server.url.replace("postgresql:", "postgresql+psycopg:"))


@pytest.mark.slow
def test_a_sweep_is_mirrored_to_postgresql(sweep: DiskSweep, server: Server) -> None:  # noqa: F811 - the fixture
    uri = server.url.replace("postgresql:", "postgresql+psycopg:")
    for arm in "ab":
        train(sweep.start(arm), 1, 3)
    assert Mirror(sweep.path, uri).sync() == 12
    train(sweep.cell("a"), 4, 4)
    assert Mirror(sweep.path, uri).sync() == 2
    reader = Reader(uri)
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert len(reader.children()["b-s0"].data.params) == 5


def require_written_alike(uri: str) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from sqlalchemy import create_engine, text

    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("points", artifact_location="file:///home/mlartifacts")
    ours, theirs = (client.create_run(experiment).info.run_id for _ in range(2))
    for some in (METRICS, SOME_THERE, LATER):
        assert add_points(uri, {ours: as_curves(some)})
        client.log_batch(theirs, metrics=[Metric(*one) for one in some])
    with create_engine(uri).connect() as connection:
        for table in ("metrics", "latest_metrics"):
            query = f"SELECT key, value, timestamp, step, is_nan FROM {table} WHERE run_uuid = :run ORDER BY 1, 4, 3, 2"
            found = [connection.execute(text(query), {"run": run}).fetchall() for run in (ours, theirs)]
            assert found[0] == found[1]
    assert client.get_run(ours).data.metrics == {"loss": 0.125, "reward": 2.0, "größe": -1e-300}


def test_a_server_is_left_to_mlflow() -> None:
    assert not add_points("http://127.0.0.1:9", {"0" * 32: as_curves(METRICS)})


def as_curves(metrics: Iterable[tuple[str, float, int, int]]) -> Curves:
    return joined(value_curves("", {key: value}, at_ms, step) for key, value, at_ms, step in metrics)
