"""The executor that docs/extending.md shows, used from a folder outside the package."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.records.rows import ScoreRow
from tests.harness.run import bench

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent / "extending" / "executor.py"
POLITE = ("--executor", "polite")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = bench.write_sweep(tmp_path, seeds=1)
    shutil.copy(EXAMPLE, tmp_path / "polite.py")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"plugins": ["polite"]}))
    return path


@pytest.mark.long
def test_a_sweep_runs_on_it_to_the_verdict(sweep: Path, tmp_path: Path) -> None:
    program = "from harness.cli import main; main()"
    process = bench.start(sweep, tmp_path / "home", *POLITE, "--json", program=program)
    out, err = process.communicate(timeout=2 * bench.PATIENCE_S)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert [cell["state"] for cell in document["cells"]] == ["done", "done"]
    assert [contrast["arm"] for contrast in document["contrasts"]] == ["no_std"]


def test_cells_have_a_low_priority_and_end_with_the_numbers_of_any_executor(sweep: Path, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    assert bench.run_here(sweep, elsewhere)[0] == 0
    shutil.copytree(elsewhere / "cache", home / "cache")  # the base evaluation would take a process of its own
    process = bench.start(sweep, home, *POLITE)
    bench.wait_until(lambda: bench.steps_done(home) >= 8)
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in bench.workers_of(process)} == {
        os.getpriority(os.PRIO_PROCESS, 0) + 5
    }
    process.send_signal(signal.SIGINT)
    assert bench.end(process)[0] == 130
    assert bench.workers_of(process) == []
    assert "interrupted" in {cell.state for cell in bench.cells(home).values()}
    assert bench.run_here(sweep, home)[0] == 0
    assert _numbers(home) == _numbers(elsewhere)


def _numbers(home: Path) -> dict[str, tuple[list[dict[str, Any]], list[ScoreRow]]]:
    return {name: (cell.read_steps(), cell.read_scores()) for name, cell in bench.cells(home).items()}
