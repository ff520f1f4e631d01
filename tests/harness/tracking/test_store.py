"""Many rows at a time in MLflow's tables, as MLflow itself would have written them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import BenchError
from harness.tracking import Mirror, MirrorError, store
from harness.tracking.curves import Curves, joined, value_curves
from harness.tracking.store import Writing, add_metrics
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


def test_points_written_at_once_are_those_that_mlflow_writes(uri: str) -> None:
    require_written_alike(uri)


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
        assert add_metrics(client, ours, as_curves(some), is_first=some is METRICS)
        client.log_batch(theirs, metrics=[Metric(*one) for one in some])
    with create_engine(uri).connect() as connection:
        for table in ("metrics", "latest_metrics"):
            query = f"SELECT key, value, timestamp, step, is_nan FROM {table} WHERE run_uuid = :run ORDER BY 1, 4, 3, 2"
            found = [connection.execute(text(query), {"run": run}).fetchall() for run in (ours, theirs)]
            assert found[0] == found[1]
    assert client.get_run(ours).data.metrics == {"loss": 0.125, "reward": 2.0, "größe": -1e-300}


def test_a_server_is_left_to_mlflow() -> None:
    from mlflow import MlflowClient

    assert not add_metrics(MlflowClient(tracking_uri="http://127.0.0.1:9"), "0" * 32, as_curves(METRICS))


def as_curves(metrics: Iterable[tuple[str, float, int, int]]) -> Curves:
    return joined(value_curves("", {key: value}, at_ms, step) for key, value, at_ms, step in metrics)


@pytest.mark.slow
def test_a_run_whose_points_could_not_be_written_is_sent_again(
    sweep: DiskSweep,
    server: Server,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = server.url.replace("postgresql:", "postgresql+psycopg:")
    sweep.ask(("a", "b", "c"))
    for arm in "abc":
        train(sweep.start(arm), 1, 3)
    copy = store._copy

    def fails_for_b(connection: Any, run_id: str, curves: Curves) -> None:
        copy(connection, run_id, curves)
        if reader.children().get("b-s0") and run_id == reader.children()["b-s0"].info.run_id:
            raise OSError("No space left on device")

    reader = Reader(uri)
    with monkeypatch.context() as patch, pytest.raises(MirrorError, match=r"b-.*: No space left on device"):
        patch.setattr(store, "_copy", fails_for_b)
        Mirror(sweep.path, uri).sync()
    assert ["bench.mirrored" in reader.children()[f"{arm}-s0"].data.tags for arm in "ab"] == [True, False]
    assert reader.curve("b-s0", "train/reward/mean") == []
    assert Mirror(sweep.path, uri).sync() in (6, 12)  # with or without c, whose thread may have been faster
    for arm in "abc":
        assert reader.curve(f"{arm}-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]
        assert reader.curve(f"{arm}-s0", "time/total_s") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert Mirror(sweep.path, uri).sync() == 0


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to those of a database that takes points from several threads."""
    happened: list[str] = []

    @contextmanager
    def recorded(client: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            happened.append("undone")
            raise
        happened.append("committed")

    monkeypatch.setattr(store, "one_transaction", recorded)
    monkeypatch.setattr(store, "_store", lambda client: SimpleNamespace(db_type="postgresql"))
    return happened


def test_while_points_are_written_the_next_run_is_made(transactions: list[str]) -> None:
    second_is_made = threading.Event()

    def send_first() -> int:
        assert second_is_made.wait(10)
        return 1

    with Writing.to(None) as writing:
        writing.send("first", send_first, lambda n: transactions.append(f"{n} said"))
        transactions.append("second made")
        second_is_made.set()
        writing.send("second", lambda: 2, lambda n: transactions.append(f"{n} said"))
    # Whoever writes points sees the run, and what is said of them comes after them.
    assert transactions == ["committed", "second made", "committed", "1 said", "2 said", "committed"]


@pytest.mark.parametrize("error", [BenchError("stop"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_no_thread_writes_after_an_end_of_whatever_kind(transactions: list[str], error: BaseException) -> None:
    is_leaving = threading.Event()

    def send() -> int:
        assert is_leaving.wait(10)
        transactions.append("written")
        return 1

    with pytest.raises(type(error)), Writing.to(None) as writing:
        writing.send("first", send, fail)
        threading.Timer(0.05, is_leaving.set).start()
        raise error
    assert transactions == ["committed", "undone", "written"]


def test_no_more_runs_wait_than_threads_write(transactions: list[str]) -> None:
    may_write = threading.Event()

    def send() -> int:
        assert may_write.wait(10)
        return 1

    def end(n: int) -> None:
        assert writing_together() <= store._THREADS

    with Writing.to(None) as writing:
        for _ in range(store._THREADS):
            writing.send("some", send, end)
        assert writing_together() == store._THREADS
        threading.Timer(0.05, may_write.set).start()
        writing.send("one more", send, end)
        assert may_write.is_set()


def writing_together() -> int:
    return sum(thread.name == "mlflow-points" for thread in threading.enumerate())


def fail(n_points: int) -> None:
    pytest.fail("nothing may be said of it")
