"""The worker process itself, at a stage that is long and silent: a large evaluation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.executors.base import Ended, Job, Progress
from harness.executors.local import LocalPool
from harness.executors.slots import Slot
from harness.records import CellRecord
from tests.harness.run.small import small_spec

ENDS_WITHIN_S = 10.0


@pytest.fixture
def worker(home: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """With what a test adds to its environment."""
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.run.worker", str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | getattr(request, "param", {}),
    )
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def give(worker: subprocess.Popen[str], kind: str, path: str, settings: dict[str, Any]) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(Job(kind, path, small_spec(settings)).to_json()) + "\n")
    worker.stdin.flush()


def next_event(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """The next event that is not a heartbeat."""
    assert worker.stdout is not None
    while "still_s" in (event := json.loads(worker.stdout.readline())):
        pass
    return dict(event)


def outcome(worker: subprocess.Popen[str], kind: str, path: str, settings: dict[str, Any]) -> tuple[str, str | None]:
    """Give a job and wait for its end: state and reason."""
    give(worker, kind, path, settings)
    while (event := next_event(worker))["event"] == "progress":
        pass
    return event["state"], event["reason"]


LONG = {"eval.problems": 256, "eval.samples": 1024}


@pytest.mark.slow
def test_a_busy_worker_ends_when_its_parent_is_gone(worker: subprocess.Popen[str], tmp_path: Path) -> None:
    give(worker, "base", "base.json", LONG)
    next_event(worker)
    assert worker.stdin is not None
    worker.stdin.close()
    worker.stdin = None
    assert worker.wait(ENDS_WITHIN_S) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["leases"]


SECOND_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("worker", [SECOND_OF_TWO], indirect=True)
def test_one_of_the_processes_of_a_cell_ends_at_once_when_its_parent_is_gone(
    worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It waits for the others, which end so too. While it lived, it would keep a GPU, or the cell's lease."""
    give(worker, "cell", "cell", {"train.processes": 2})
    assert worker.stdin is not None
    worker.stdin.close()
    worker.stdin = None
    assert worker.wait(ENDS_WITHIN_S) == -signal.SIGKILL


@pytest.mark.slow
def test_outcomes_are_told_and_a_busy_worker_ends_when_it_is_told_to(
    worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert outcome(worker, "load", "", {}) == ("done", None)
    state, reason = outcome(worker, "load", "", {"model.source": "path:/nowhere"})
    assert state == "refused" and "/nowhere" in str(reason)
    assert outcome(worker, "load", "", {}) == ("done", None)
    give(worker, "base", "base.json", LONG)
    next_event(worker)
    worker.terminate()
    assert worker.wait(ENDS_WITHIN_S) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["leases"]


@pytest.mark.slow
def test_a_cell_is_computed_on_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the user has set: sums of several threads round differently, and cells run beside each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    folder = tmp_path / "arm-s0-0123456789"
    folder.mkdir()
    pool = LocalPool([Slot("cpu", "")], tmp_path, "harness.run.worker")
    pool.start(Job("cell", folder.name, small_spec({"train.steps": 1, "eval.problems": 1})))
    events: list[Progress | Ended] = []
    while not events or not isinstance(events[-1], Ended):
        events += pool.wait(1.0)
    pool.close()
    assert (events[-1].state, events[-1].reason) == ("done", None)
    assert CellRecord.at(folder).provenance["torch_threads"] == 1
