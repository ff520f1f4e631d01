"""Databases for MLflow: making one takes it seconds, so tests get copies of a first one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from tests.harness.tracking.helpers import DiskSweep, Reader, train


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        yield


@dataclass(frozen=True)
class FirstSync:
    """What a first `sync` in a process of its own did, in an empty home and an empty current directory."""

    home: Path
    directory: Path
    output: str


@pytest.fixture(scope="session")
def first_sync(tmp_path_factory: pytest.TempPathFactory) -> FirstSync:
    home = tmp_path_factory.mktemp("home")
    directory = tmp_path_factory.mktemp("directory")
    sweep = DiskSweep(home, "first")
    sweep.ask()
    train(sweep.start("a"), 1, 3)
    program = (
        "import sys, pathlib, harness.tracking as tracking\n"
        "assert 'mlflow' not in sys.modules\n"
        "sweep = pathlib.Path(sys.argv[1])\n"
        "assert tracking.Mirror(sweep, tracking.tracking_uri(sweep.parent)).sync() == 6\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "assert is_telemetry_disabled()\n"
    )
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", program, str(sweep.path)],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root)},  # nothing that would keep MLflow quiet
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return FirstSync(home, directory, result.stdout)


@pytest.fixture(scope="session")
def new_database(first_sync: FirstSync) -> Callable[[Path], str]:
    """Makes a database at a path, without a trace of other sweeps of this name; returns its URI."""

    def make(path: Path) -> str:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        shutil.copy(first_sync.home / "mlflow.db", path)
        uri = f"sqlite:///{path}"
        SqlAlchemyStore._get_or_create_engine(uri).dispose()  # MLflow holds on to a file that was there before
        return uri

    return make


@pytest.fixture
def sweep(tmp_path: Path) -> DiskSweep:
    disk_sweep = DiskSweep(tmp_path)
    disk_sweep.ask()
    return disk_sweep


@pytest.fixture
def uri(tmp_path: Path, new_database: Callable[[Path], str]) -> str:
    return new_database(tmp_path / "mlflow.db")


@pytest.fixture
def reader(uri: str) -> Reader:
    return Reader(uri)
