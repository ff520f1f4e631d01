"""Records that were made elsewhere: on another machine or in another home."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.records import CellRecord, read_sweep
from tests.harness.cli.conftest import Bench
from tests.harness.run import bench as bench_run

pytestmark = pytest.mark.slow

HELPER = "SCALE = 0.5\n"
CHANGED = "SCALE = 0.25\n"
REWARD = "from my_scale import SCALE\n\ndef short(group, context):\n    return [SCALE] * len(group)\n"


def starts(cell: CellRecord) -> list[str]:
    """A line for each time that a process began or took up the cell."""
    return (cell.path / "starts.jsonl").read_text().splitlines()


def test_a_folder_from_another_machine_goes_on_with_all_that_it_names(tmp_path: Path, bench: Bench) -> None:
    """The sweep file, its profile, the user's reward and the module that it imports are nowhere but in the folder."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "my_scale.py").write_text(HELPER)
    (there / "my_reward.py").write_text(REWARD)
    arms: dict[str, dict[str, Any]] = {
        "correct": {"reward.parts.my_reward:short": 0.0},
        "and_short": {"reward.parts.my_reward:short": 0.1},
    }
    sweep = bench_run.write_sweep(there, arms, seeds=1)
    sweep.write_text(sweep.read_text() + "plugins: [my_reward]\n")
    code, stderr = bench_run.run_here(sweep, there / "runs", "--arms", "correct", "--set", "train.steps=2")
    assert code == 0, stderr

    here = tmp_path / "here"
    here.mkdir()
    shutil.move(there / "runs" / "small", here / "small")
    shutil.rmtree(there)
    for verb in ("plan", "status"):
        cells_there = bench(verb, str(here / "small"), "--json").document["cells"]
        assert [cell["state"] for cell in cells_there] == ["done"], verb
    shutil.copytree(here / "small", here / "renamed")
    bench("run", str(here / "renamed")).refused("bench.folder_name_differs", sweep_name="small")

    code, stderr = bench_run.run_here(here / "small", here, "--arms", "correct,and_short")
    assert code == 0, stderr
    cells = bench_run.cells(here)
    assert {cell.arm: len(starts(cell)) for cell in cells.values()} == {"correct": 1, "and_short": 1}
    assert {cell.read_status()["step"] for cell in cells.values()} == {2}, "--set is part of the question"

    planned = bench("plan", here / "small", "--json").document["cells"]
    assert {cell["state"] for cell in planned} == {"done"}, "as `bench run` finds them, whatever the current folder"

    (here / "small" / "question" / "code" / "my_scale.py").write_text(CHANGED)
    code, stderr = bench_run.run_here(here / "small", here)
    assert code == 2 and "--trust-code" in stderr, "it is another code than the one that its user ran"
    code, stderr = bench_run.run_here(here / "small", here, "--trust-code")
    assert code == 0, stderr
    assert "2 finished cells" in stderr
    assert len(bench_run.cells(here)) == 4


def test_cells_of_another_home_are_found(tmp_path: Path) -> None:
    sweep = bench_run.write_sweep(tmp_path, seeds=1)
    for home, arm in (("one", "group_std"), ("other", "no_std")):
        code, stderr = bench_run.run_here(sweep, tmp_path / home, "--arms", arm, "--set", "train.steps=2")
        assert code == 0, stderr
    shutil.copytree(tmp_path / "other" / "small" / "cells", tmp_path / "one" / "small" / "cells", dirs_exist_ok=True)
    code, stderr = bench_run.run_here(sweep, tmp_path / "one", "--set", "train.steps=2")
    assert code == 0, stderr
    assert {cell.arm: len(starts(cell)) for cell in bench_run.cells(tmp_path / "one").values()} == {
        "group_std": 1,
        "no_std": 1,
    }
    entries = read_sweep(tmp_path / "one" / "small").cells
    assert {(cell.arm, cell.state) for cell in entries} == {("group_std", "done"), ("no_std", "done")}
