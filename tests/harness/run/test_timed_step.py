"""A step is timed in a worker, as cells are, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.executors.local import LocalPool
from harness.executors.slots import Slot
from harness.run.timed_step import timed_pace
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import Quiet

pytestmark = pytest.mark.slow


class Watched(Quiet):
    """An observer that keeps the folders in which the pools were opened."""

    def __init__(self) -> None:
        self.homes: list[Path] = []

    def open(self, home: Path) -> LocalPool:
        self.homes.append(home)
        return LocalPool([Slot("cpu", "")], home, "harness.run.worker")


def test_a_timed_step_gives_the_pace_of_its_cell_and_leaves_nothing(tmp_path: Path) -> None:
    watched = Watched()
    settings = {"train.steps": 50, "train.warmup_steps": 5, "budget.tokens": 10_000, "eval.problems": 100}
    pace = timed_pace(small_spec(settings), tmp_path / "home", watched.open, watched)
    assert 0 < pace.step_s < 60
    assert 0 < pace.filled_frac <= 1
    assert pace.problems == 100, "of the cell, not the few that were timed"
    assert pace.fits(small_spec(settings))
    assert pace.cell_s(small_spec(settings)) > 10 * pace.step_s
    assert not (tmp_path / "home").exists()
    assert [home.exists() for home in watched.homes] == [False]
