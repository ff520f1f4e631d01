"""Real workers on real cells: one is killed and its trial goes on elsewhere, two share a study, a trial is pruned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness.run import bench
from tests.harness.search.fake_cells import write_search

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path
from harness.executors.local import LocalPool
from harness.executors.slots import Slot
from harness.plan.search_plan import make_search_plan
from harness.search.run import SearchRun
from tests.harness.search.fake_cells import Silent
path, trials, workers = sys.argv[1:]
plan, home = make_search_plan(path), Path(path).parent / "runs"
opened = lambda slots: LocalPool([Slot("cpu", "")] * slots, home, "harness.run.worker")
SearchRun(plan, home, "bench tune found", int(workers), opened, int(trials)).run(Silent())
"""
QUICK: dict[str, Any] = {"train.steps": 6, "train.checkpoint_every": 2, "eval.problems": 8, "eval.samples": 2}


def start(path: Path, trials: int, workers: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), str(trials), str(workers)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    _, stderr = process.communicate(timeout=bench.PATIENCE_S)
    assert process.returncode == 0, stderr


def study(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path.parent / "runs" / "found" / "study.json").read_text())
    return document


def test_a_killed_search_goes_on_and_two_share_one(tmp_path: Path) -> None:
    path = write_search(tmp_path, base={"algorithm": "grpo", **QUICK, "train.steps": 12})
    killed = start(path, trials=3)
    deadline_s = time.monotonic() + bench.PATIENCE_S
    steps: list[Path] = []
    while not steps:  # until the first trial has trained a little
        assert killed.poll() is None and time.monotonic() < deadline_s
        steps = list((tmp_path / "runs" / "found" / "cells").glob("*/checkpoints/step-000002"))
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    (left,) = study(path)["trials"]
    assert left["state"] == "running"

    together = [start(path, trials=3), start(path, trials=3)]
    for process in together:
        end(process)
    trials = study(path)["trials"]
    assert [trial["number"] for trial in trials] == list(range(3))
    assert {trial["state"] for trial in trials} == {"complete"}
    assert trials[0]["params"] == left["params"] and trials[0]["hash"] == left["hash"]
    log = (tmp_path / "runs" / "found" / "cells" / trials[0]["cells"][0] / "log.txt").read_text()
    assert "resumed at step" in log
    trained = {tuple(trial["cells"]) for trial in trials if trial["same_as"] is None}
    assert len(trained) == len({trial["hash"] for trial in trials})


def test_a_pruned_cell_stops_where_it_can_be_continued(tmp_path: Path) -> None:
    """A learning rate of 1 ends all learning, which the pruner sees."""
    search = {"pruner": {"type": "median", "options": {"n_startup_trials": 1, "n_warmup_steps": 0}}}
    knobs = {"train.learning_rate": {"categorical": [3e-4, 1.0]}}
    quick = QUICK | {"eval.every": 2, "train.steps": 40}
    path = write_search(tmp_path, search | {"knobs": knobs}, base={"algorithm": "grpo", **quick})
    end(start(path, trials=3))
    trials = study(path)["trials"]
    pruned = next(trial for trial in trials if trial["state"] == "pruned")
    cell = tmp_path / "runs" / "found" / "cells" / pruned["cells"][0]
    status = json.loads((cell / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert list((cell / "checkpoints").glob("step-*"))
    steps = [json.loads(row) for row in (cell / "steps.jsonl").read_text().splitlines()]
    assert len(steps) < 40
    assert pruned["generated_tokens"] == steps[-1]["generated_tokens"] > 0
