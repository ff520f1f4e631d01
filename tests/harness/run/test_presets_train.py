"""Every preset trains: a short run in each test run, sixty steps on two seeds in the long one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import presets
from harness.models.language_model import load_model
from harness.records import CellRecord
from harness.training.checkpoint import load_latest
from tests.harness.run.small import trained

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"train.updates_per_rollout": 2, "eval.every": 0, "eval.problems": 2, "eval.samples": 1}


def train(folder: Path, name: str, seed: int, settings: dict[str, Any]) -> CellRecord:
    return trained(folder, {"algorithm": name, **SETTINGS, **settings}, seed)


def assert_sane(cell: CellRecord, steps: int) -> None:
    status = cell.read_status()
    assert (status["state"], status["step"]) == ("done", steps)
    assert "nan" not in status["flags"]
    rows = cell.read_steps()
    assert len({frozenset(row) for row in rows}) == 1, "a metric that exists in a run exists at each of its steps"
    for row in rows:
        assert all(math.isfinite(value) for value in row.values() if value is not None)
        # Where every reward is the same there are no pairs, and nothing to step on.
        assert row["grad_norm"] >= 0 if row["optimizer_steps"] else row["grad_norm"] is None
    assert any((row["grad_norm"] or 0) > 0 for row in rows)


@pytest.mark.parametrize("name", presets())
def test_three_steps(name: str, tmp_path: Path) -> None:
    """Three steps of two updates: the loss is finite, the weights move, nothing is NaN."""
    cell = train(tmp_path, name, 0, {"train.steps": 3})
    assert_sane(cell, 3)
    last = load_latest(cell.checkpoints)
    start = load_model("builtin:tiny").model.state_dict()
    assert last is not None
    assert any(not torch.equal(last.weights[weight], start[weight]) for weight in start)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", presets())
def test_sixty_steps(name: str, seed: int, tmp_path: Path) -> None:
    settings = {"train.steps": 60, "rollout.prompts_per_step": 8, "eval.problems": 32, "eval.samples": 4}
    assert_sane(train(tmp_path, name, seed, settings), 60)
