"""The programs of docs/howto/trainers.md train cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.run import bench

SWEEP = Path(__file__).parents[2] / "examples" / "trainers" / "script" / "sweep.yaml"
SHORT = ("train.steps=5", "train.checkpoint_every=4", "eval.every=2", "eval.problems=8", "eval.samples=1")


@pytest.mark.slow
def test_both_programs_keep_to_the_contract(tmp_path: Path) -> None:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    code, printed = bench.run(SWEEP, tmp_path, "--seeds", "1", *settings, "--arms", "script,supervised")
    assert code == 0, printed
    warnings = [line for line in printed.splitlines() if line.startswith("warning")]
    assert not any("checkpoint" in line for line in warnings), "each is due at multiples of two numbers"
    cells = {cell.arm: cell for cell in bench.cells(tmp_path, "own_trainer").values()}
    script, supervised = cells["script"], cells["supervised"]
    for cell in (script, supervised):
        assert (cell.state, [row["step"] for row in cell.read_steps()]) == ("done", [1, 2, 3, 4, 5])
        assert [(row["step"], row["final"]) for row in cell.read_scores()] == [(2, False), (4, False), (5, True)]
    assert all(0 <= row["reward/mean"] <= 1 for row in script.read_steps())
    first, *_, last = (row["program/loss"] for row in supervised.read_steps())
    assert last < first
