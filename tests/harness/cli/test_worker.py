"""`bench worker`, as far as it trains nothing; tests/examples/test_cluster.py runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.plan import make_plan
from harness.run.shared_sweep import WorkerRun
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import finish, write_sweep_file


@pytest.fixture(autouse=True)
def _without_stages_for_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerRun, "_stages_for_report", lambda self: [])


def test_it_says_what_is_done_and_what_writes_the_report(bench: Bench, tmp_path: Path) -> None:
    path = write_sweep_file(tmp_path, seeds=1)
    plan = make_plan(str(path))
    for cell in plan.cells:
        finish(cell, plan.folder(tmp_path / "my runs"))
    said = bench("worker", path, "--home", "my runs")
    assert said.code == 0 and said.out.endswith("bench run mine --home 'my runs'\n")
    document = bench("worker", path, "--home", "my runs", "--json").document
    assert document | {"cells": ...} == {
        "sweep": "mine", "ran": {}, "cells": ..., "report": "bench run mine --home 'my runs'"
    }  # fmt: skip
    assert [(cell["arm"], cell["seed"], cell["state"], cell["reason"]) for cell in document["cells"]] == [
        ("with", 0, "done", None), ("without", 0, "done", None)
    ]  # fmt: skip
    assert not (tmp_path / "my runs" / "mine" / "report").exists()


def test_a_cell_that_it_ran_and_that_failed_ends_it_with_1(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerRun, "run", lambda self, observer: self.ran.update({"with-s0": "failed", "b": "done"}))
    failed = bench("worker", write_sweep_file(tmp_path, seeds=1))
    failed.ended(1, "cli.worker_cells_not_done", n_not_done=1, n_cells=2)


def test_a_sweep_that_searches_first_is_refused(bench: Bench, tmp_path: Path) -> None:
    tune = {"per_arm": {"train.learning_rate": {"log": [1e-4, 1e-2]}}, "trials": 5}
    bench("worker", write_sweep_file(tmp_path, tune=tune)).refused("cli.search_not_done", arms="with, without")
    assert not (tmp_path / "runs").exists()
