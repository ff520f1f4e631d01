from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from harness.tracking import Mirror, MirrorError, server_command, tracking_uri
from harness.tracking.client import address, talking_to_mlflow
from tests.harness.tracking.helpers import DiskSweep
from tests.refusals import refuses

pytestmark = pytest.mark.slow

CLOSED_PORT = "http://127.0.0.1:9"


def test_tracking_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", CLOSED_PORT)
    assert tracking_uri(Path("runs")) == CLOSED_PORT


def test_a_server_that_is_away_is_found_out_without_mlflow(sweep: DiskSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes seconds, in which nothing would be mirrored."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with refuses(MirrorError, "tracking.mirror_late", uri=CLOSED_PORT):
        Mirror(sweep.path, CLOSED_PORT).sync()


def test_a_server_behind_a_proxy_is_left_to_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(MirrorError), talking_to_mlflow("http://tracking.invalid:9"):
        pytest.fail("it was not looked for")
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    with talking_to_mlflow("http://tracking.invalid:9"):
        pass


@pytest.mark.parametrize(
    "uri",
    ["http://me:s3cret%2F@127.0.0.1:9", "postgresql://me:s3cret%2F@127.0.0.1:9/db", "mysql://h/db?password=s3cret%2F"],
)
def test_passwords_are_not_shown(sweep: DiskSweep, uri: str) -> None:
    with pytest.raises(MirrorError) as refused:
        Mirror(sweep.path, uri).sync()
    assert "s3cret" not in str(refused.value)
    assert "***" in str(refused.value)
    assert "s3cret" not in f"{address(uri, '1')} {server_command(uri)}"


def test_a_database_that_is_away_is_tried_once(sweep: DiskSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="needs the extra postgresql")
    monkeypatch.setattr("mlflow.store.db.utils.time.sleep", lambda seconds: pytest.fail("MLflow waits for it"))
    with pytest.raises(MirrorError):
        Mirror(sweep.path, "postgresql+psycopg://127.0.0.1:9/db").sync()


def test_where_a_browser_finds_the_runs() -> None:
    assert address("https://me:s3cret@host:8/mlflow/", "7") == "https://host:8/mlflow/#/experiments/7/runs"
    assert address("sqlite:////home/mlflow.db", "7") == "http://127.0.0.1:5000/#/experiments/7/runs"
    assert server_command("https://host") is None
    assert shlex.split(server_command("sqlite:////my home/mlflow.db") or "")[-1] == "sqlite:////my home/mlflow.db"


def test_an_environment_set_by_the_user_stands(sweep: DiskSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with pytest.raises(MirrorError):
        Mirror(sweep.path, CLOSED_PORT).sync()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "3"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


def test_an_unwritable_place(sweep: DiskSweep, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MirrorError):
        Mirror(sweep.path, f"sqlite:///{tmp_path}/file/mlflow.db").sync()
