"""The worker process itself, at a stage that is long and silent: a large evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.run.jobs import Job
from tests.harness.run.small import small_spec

ENDS_WITHIN_S = 10.0


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.executors.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def give(worker: subprocess.Popen[str], kind: str, path: Path, settings: dict[str, Any]) -> None:
    spec = small_spec(settings)
    job = Job(kind, str(path), json.loads(spec.model_dump_json()), spec.model.source)  # type: ignore[arg-type]
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(job.to_json()) + "\n")
    worker.stdin.flush()


def next_event(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdout is not None
    return dict(json.loads(worker.stdout.readline()))


def outcome(worker: subprocess.Popen[str], kind: str, path: Path, settings: dict[str, Any]) -> tuple[str, str | None]:
    """Give a job and wait for its end: state and reason."""
    give(worker, kind, path, settings)
    while (event := next_event(worker))["event"] == "progress":
        pass
    return event["state"], event["reason"]


@pytest.mark.parametrize("how", ["its parent is gone", "it is told to stop"])
def test_a_busy_worker_ends_when(worker: subprocess.Popen[str], tmp_path: Path, how: str) -> None:
    long = {"eval.problems": 256, "eval.samples": 1024}
    give(worker, "base", tmp_path / "base.json", long)
    assert next_event(worker)["phase"] == "evaluating the base model"
    assert worker.stdin is not None
    if how == "its parent is gone":
        worker.stdin.close()
        worker.stdin = None
    else:
        worker.terminate()
    assert worker.wait(ENDS_WITHIN_S) == 0
    assert list(tmp_path.iterdir()) == []


def test_outcomes_are_told(worker: subprocess.Popen[str], tmp_path: Path) -> None:
    assert outcome(worker, "load", tmp_path, {}) == ("done", None)
    state, reason = outcome(worker, "load", tmp_path, {"model.source": "path:/nowhere"})
    assert state == "refused"
    assert reason is not None and "/nowhere" in reason
    assert outcome(worker, "load", tmp_path, {}) == ("done", None)
