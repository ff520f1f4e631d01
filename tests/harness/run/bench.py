"""`bench run` on a small sweep, in a process of its own or in this one; without the MLflow mirror and the page, which
take seconds."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml

from harness.cli import main
from harness.records import CellRecord
from tests.harness.run.small import SETTINGS
from tests.harness.run.stages_here import without_workers

PROGRAM = """
import contextlib
import harness.cli.report as report
import harness.tracking as tracking
from harness.cli import main
tracking.MirrorThread = lambda mirror: contextlib.nullcontext()
report.write = lambda folder: {}
report.print_verdict = lambda document, folder: None
main()
"""
ARMS: dict[str, dict[str, Any]] = {"group_std": {}, "no_std": {"objective.scale": "none"}}
SWEEP_SETTINGS = {"train.steps": 10, "train.checkpoint_every": 3, "eval.every": 4, "eval.problems": 24}
PATIENCE_S = 300.0


def write_sweep(
    folder: Path,
    arms: dict[str, dict[str, Any]] | None = None,
    seeds: int = 2,
    base: dict[str, Any] | None = None,
) -> Path:
    """A sweep `small` beside its profile; returns its path. base: settings on top of SWEEP_SETTINGS."""
    arms = arms or ARMS
    (folder / "small_profile.yaml").write_text(yaml.safe_dump({k: v for k, v in SETTINGS.items() if k != "algorithm"}))
    sweep = {
        "name": "small",
        "question": "Does it go on?",
        "profile": "small_profile.yaml",
        "ablate": sorted({knob for arm in arms.values() for knob in arm}),
        "base": {"algorithm": "grpo", **SWEEP_SETTINGS, **(base or {})},
        "arms": arms,
        "seeds": seeds,
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(sweep, sort_keys=False))
    return path


def start(
    sweep: Path | str, home: Path, *options: str, program: str = PROGRAM, verb: str = "run"
) -> subprocess.Popen[str]:
    """`bench run`, or another verb, at the head of a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", program, verb, str(sweep), "--home", str(home), "--workers", "2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(sweep: Path | str, home: Path, *options: str, program: str = PROGRAM) -> tuple[int, str]:
    """`bench run` to its end: exit code and stderr."""
    return end(start(sweep, home, *options, program=program))


def run_here(sweep: Path | str, home: Path, *options: str, page: bool = False) -> tuple[int, str]:
    """As `run`, but in this process with its cells, which spares the start of three. page: write the report too."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        without_workers(patch)
        patch.setattr("sys.argv", ["bench", "run", str(sweep), "--home", str(home), *options])
        if not page:
            patch.setattr("harness.cli.report.write", lambda folder: {})
            patch.setattr("harness.cli.report.print_verdict", lambda document, folder: None)
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(printed),
            pytest.raises(SystemExit) as left,
        ):
            main()
    return int(left.value.code or 0), printed.getvalue()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, stderr = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        kill_all(process)
        raise
    return process.returncode, stderr


def cells(home: Path, sweep: str = "small") -> dict[str, CellRecord]:
    """Cells on disk by `<arm>-s<seed>-<hash>`."""
    return {path.name: CellRecord.at(path) for path in sorted((home / sweep / "cells").glob("*"))}


def contents(cell: CellRecord) -> dict[str, Any]:
    """What must be the same whatever happened on the way: all but the numbers of starts, and what counts them too."""
    status = {name: value for name, value in cell.read_status().items() if name != "records"}
    rows = {"status": status, "steps": cell.read_steps(), "scores": cell.read_scores()}
    return rows | {"rollouts": rollout_rows(cell), "evals": (cell.path / "evals.parquet").read_bytes()}


def rollout_rows(cell: CellRecord) -> list[dict[str, Any]]:
    """Those of all files together: each holds as many steps as there were between two checkpoints, and lacks columns
    that are null in all its rows."""
    rows = (row for path in cell.rollout_files() for row in pyarrow.parquet.read_table(path).to_pylist())
    return [{column: value for column, value in row.items() if value is not None} for row in rows]


def all_contents(home: Path, sweep: str = "small") -> dict[str, dict[str, Any]]:
    return {name: contents(cell) for name, cell in cells(home, sweep).items()}


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def steps_done(home: Path) -> int:
    """Steps recorded by all cells together."""
    return sum(path.read_bytes().count(b"\n") for path in (home / "small" / "cells").glob("*/steps.jsonl"))


def kill_all(process: subprocess.Popen[str]) -> None:
    """The parent and its workers, as when the machine's memory runs out."""
    for pid in processes_of(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Worker processes of a `bench run`: each leads a process group of its own."""
    found = []
    for pid in processes_of(process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"harness.run.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def processes_of(session: int) -> list[int]:
    """The live processes of a session; of one that `start` began: the parent, its workers, and what these started."""
    numbers = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [pid for pid in numbers if _stat(pid)[3:4] == [str(session)] and state_of(pid) != "Z"]


def state_of(pid: int) -> str | None:
    """As ps shows it: T for stopped, Z for dead and not yet waited for; None if there is no such process."""
    return next(iter(_stat(pid)), None)


def _stat(pid: int) -> list[str]:
    """State, parent, process group, session and more; [] if there is no such process. See proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
