from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from harness.tracking import Mirror, MirrorError, MirrorThread
from tests.harness.tracking.helpers import DiskSweep, Reader, train

pytestmark = pytest.mark.slow


class CountingMirror(Mirror):
    """Does as it is told instead of talking to MLflow."""

    def __init__(self, *outcomes: MirrorError | None) -> None:
        super().__init__(Path(), "")
        self.outcomes = list(outcomes)
        self.n_syncs = 0
        self.reached_end = threading.Event()

    def sync(self) -> int:
        outcome = self.outcomes[min(self.n_syncs, len(self.outcomes) - 1)]
        self.n_syncs += 1
        if self.n_syncs >= len(self.outcomes):
            self.reached_end.set()
        if outcome is not None:
            raise outcome
        return 0


def test_the_last_rows_are_there_at_the_end(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    with MirrorThread(Mirror(sweep.path, uri), interval_s=60):
        train(cell, 1, 3)
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_rows_appear_while_the_sweep_runs(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    Mirror(sweep.path, uri).sync()
    with MirrorThread(Mirror(sweep.path, uri), interval_s=0.05):
        train(cell, 1, 1)
        until_s = time.monotonic() + 20
        while reader.curve("a-s0", "train/reward/mean") != [(1, 1.0)]:
            assert time.monotonic() < until_s
            time.sleep(0.05)


def test_one_warning_however_long_the_server_is_away(caplog: pytest.LogCaptureFixture) -> None:
    mirror = CountingMirror(MirrorError("away"), MirrorError("away"), None, MirrorError("away again"))
    with MirrorThread(mirror, interval_s=0.001):
        assert mirror.reached_end.wait(10)
    assert [record.getMessage() for record in caplog.records] == ["away"]


def test_a_closed_port_costs_no_time(sweep: DiskSweep, caplog: pytest.LogCaptureFixture) -> None:
    started_s = time.monotonic()
    with MirrorThread(Mirror(sweep.path, "http://127.0.0.1:9"), interval_s=0.05):
        time.sleep(0.5)
    assert time.monotonic() - started_s < 5
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_server_that_does_not_answer_is_not_waited_for(
    sweep: DiskSweep, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started_s = time.monotonic()
        with MirrorThread(Mirror(sweep.path, f"http://127.0.0.1:{silent.getsockname()[1]}"), patience_s=0.2):
            pass
        assert time.monotonic() - started_s < 1
        assert "`bench sync`" in caplog.text


def test_after_ctrl_c_a_slow_server_is_waited_for_a_few_seconds(
    sweep: DiskSweep, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setattr(MirrorThread, "HURRY_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mirror = Mirror(sweep.path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        started_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt), MirrorThread(mirror):
            raise KeyboardInterrupt
        assert time.monotonic() - started_s < 1
        assert "`bench sync`" in caplog.text


def test_an_error_of_the_sweep_passes_after_a_last_sync() -> None:
    mirror = CountingMirror(None)
    with pytest.raises(KeyboardInterrupt), MirrorThread(mirror, interval_s=60):
        raise KeyboardInterrupt
    assert mirror.n_syncs == 1
