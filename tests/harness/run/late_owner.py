"""Stop the owner of a cell right before each of its writes, let a second owner finish the cell, and wake the first.

`python -m tests.harness.run.late_owner CASE,CASE N` does so for every N-th write of each case, and prints as JSON what
the first owner changed. Owners are forks of one process that has imported everything. They see neither locks nor
recent heartbeats, as on a shared disk where only time shows that an owner is dead.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.config.run_spec import RunSpec
from harness.models.start import StartingPoint
from harness.plan import PlannedCell
from harness.records import CellRecord, lease
from harness.records.fence import LeaseLostError
from harness.records.files import write_json
from harness.records.lease import LeaseTakenError
from harness.run.cell_job import run_cell
from harness.training.checkpoint import load_checkpoint
from tests.harness.run.small import small_spec

SMALL = {
    **{"train.device": "cpu", "model.dtype": "float32", "rollout.engine": "torch", "rollout.staleness_steps": 1},
    **{"train.steps": 3, "train.checkpoint_every": 1, "rollout.prompts_per_step": 2, "rollout.samples_per_prompt": 2},
    **{"eval.problems": 2, "eval.every": 2, "eval.samples": 2, "eval.curve_samples": 1},
}
LOST = 7
"""The exit code of an owner that found its lease lost."""
_REMOVED = ("os.remove", "os.rmdir", "shutil.rmtree", "os.truncate")
_NAMED = ("os.rename", "os.link", "os.mkdir")


def owner(spec: RunSpec, home: Path, stop: Callable[[str], None]) -> int:
    """Run the cell in a fork; return its process number. stop: is told of each write right before it happens."""
    if process := os.fork():
        return process
    cell = record_of(home, spec).path

    def listen(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if event == "open" or event in _REMOVED or event in _NAMED:
            paths = [os.fsdecode(one) for one in args[:2] if isinstance(one, str | bytes | os.PathLike)]
            inside = [path for path in paths if path.startswith(f"{cell}/") and "lease.json" not in path]
            if inside:
                names = (re.sub(r"[0-9a-f]{12,}", "*", path.removeprefix(f"{cell}/")) for path in inside)
                stop(f"{event} {' -> '.join(names)}")

    code = 1
    try:
        sys.addaudithook(listen)
        run_cell(spec, home, cell, StartingPoint(), lambda event: None, lambda: None)
        code = 0
    except (LeaseTakenError, LeaseLostError):
        code = LOST
    finally:
        os._exit(code)


def record_of(home: Path, spec: RunSpec) -> CellRecord:
    return PlannedCell.of_arm("one", {0: spec})[0].record(home / "mine" / "cells")


def finish(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def writes_of(spec: RunSpec, home: Path) -> list[str]:
    """Return every write of an owner that nobody disturbs, in order."""
    listing = home / "writes.txt"

    def note(write: str) -> None:
        with listing.open("a") as file:
            file.write(f"{write}\n")

    assert finish(owner(spec, home, note)) == 0
    return listing.read_text().splitlines()


def stopped_at(number: int, spec: RunSpec, home: Path) -> int:
    """Return the process number of an owner that was stopped right before its write of this number."""
    left = [number]

    def stop(write: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            left[0] = sys.maxsize
            os.kill(os.getpid(), signal.SIGSTOP)

    process = owner(spec, home, stop)
    assert os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1])
    return process


def facts(cell: CellRecord) -> dict[str, Any]:
    """Return what readers see of a cell, and the contents of all files but those that rows are appended to."""
    cell.require_whole()
    rows = {
        **{"status": cell.read_status(), "steps": cell.read_steps(), "timing": cell.read_timing()},
        **{"columns": cell.read_step_columns().to_pylist(), "scores": cell.read_scores()},
        **{"starts": cell.provenances, "problems": cell.read_problems()},
        "checkpoints": {path.name: load_checkpoint(path).step for path in cell.checkpoints.glob("step-*")},
        "rollouts": [str(path) for path in cell.rollout_files()],
    }
    files = (path for path in cell.path.rglob("*") if path.is_file() and path.name not in ("lease.json", "log.txt"))
    contents = {str(path): path.read_bytes() for path in files if path.suffix != ".jsonl"}
    return rows | {"files": contents, "rows": {str(path) for path in cell.path.rglob("*.jsonl")}}


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    old, new = before["files"], after["files"]
    files = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return files + [name for name in before if name != "files" and before[name] != after[name]]


def disturb(spec: RunSpec, start: Path, number: int) -> tuple[int, list[str]]:
    """Return how the first owner ended that was stopped before a write, and what it changed once woken."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(shutil.copytree(start, Path(folder) / "home"))
        first = stopped_at(number, spec, home)
        assert finish(owner(spec, home, lambda write: None)) == 0
        cell = record_of(home, spec)
        assert cell.state == "done"
        before = facts(cell)
        os.kill(first, signal.SIGCONT)
        ended = finish(first)
        return ended, changed(before, facts(record_of(home, spec)))


def begin(case: str, home: Path) -> RunSpec:
    """Prepare the home of a case; return the spec of the cell that its owners run."""
    spec = small_spec(SMALL)
    made = record_of(home, spec).path
    made.mkdir(parents=True)
    write_json(made / "spec.json", spec.model_dump(mode="json"))
    if case == "resumed":
        killed = stopped_at(60, spec, home)
        os.kill(killed, signal.SIGKILL)
        os.waitpid(killed, 0)
    if case == "evaluated_anew":
        assert finish(owner(spec, home, lambda write: None)) == 0
        spec = small_spec(SMALL | {"eval.samples": 3})
    return spec


def main(cases: Sequence[str], every: int) -> None:
    lease._lock = lambda handle: False
    lease._lock_of = lambda path: "unknown"
    lease.STALE_AFTER_S, lease._LOOK_EVERY_S, lease.HEARTBEAT_S = 0.4, 0.02, 0.1
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            start = Path(folder) / "start"
            spec = begin(case, start)
            writes = writes_of(spec, Path(shutil.copytree(start, Path(folder) / "listed")))
            first_of = {write: number for number, write in reversed([*enumerate(writes)])}
            for number in sorted(first_of.values())[::every]:
                ended, what = disturb(spec, start, number)
                found = {"case": case, "number": number, "write": writes[number], "ended": ended, "changed": what}
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]))
