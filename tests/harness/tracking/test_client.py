from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.tracking import Mirror, MirrorError, tracking_uri
from tests.harness.tracking.helpers import DiskSweep

pytestmark = pytest.mark.slow

CLOSED_PORT = "http://127.0.0.1:9"


def test_tracking_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", CLOSED_PORT)
    assert tracking_uri(Path("runs")) == CLOSED_PORT


def test_a_server_that_is_away(sweep: DiskSweep) -> None:
    with pytest.raises(MirrorError, match=rf"MLflow at {CLOSED_PORT} is not up to date: (.|\n)*`bench sync`"):
        Mirror(sweep.path, CLOSED_PORT).sync()


def test_an_environment_set_by_the_user_stands(sweep: DiskSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with pytest.raises(MirrorError):
        Mirror(sweep.path, CLOSED_PORT).sync()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "3"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


def test_a_damaged_database_can_be_moved_away(sweep: DiskSweep, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database")
    with pytest.raises(MirrorError, match="If its database is damaged, move that away first"):
        Mirror(sweep.path, f"sqlite:///{tmp_path}/mlflow.db").sync()


def test_an_unwritable_place(sweep: DiskSweep, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MirrorError):
        Mirror(sweep.path, f"sqlite:///{tmp_path}/file/mlflow.db").sync()
