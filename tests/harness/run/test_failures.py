"""A cell that fails: others go on, it is started once more, or all stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.executors.base import Ended, Job, JobState
from harness.plan import Plan, make_plan
from harness.records.files import write_json
from harness.run.loop import StoppedError
from harness.run.stages import find_stage, result_path
from harness.run.sweep import SweepRun
from tests.harness.plan.files import write_sweep_file
from tests.harness.run.stages_here import AllHere, Quiet
from tests.refusals import refuses


class Scripted(AllHere):
    """An executor in which cells end as a script says, one after another; what cells share is done at once."""

    def __init__(self, *ends: JobState) -> None:
        super().__init__(Path())
        self.started: list[str] = []
        self._ends = list(ends)

    def _do(self, job: Job) -> tuple[JobState, str | None]:
        if job.kind != "cell":
            return "done", None
        self.started.append(Path(job.path).name.rpartition("-")[0])
        return self._ends.pop(0) if self._ends else "taken", "it broke"


class Listening(Quiet):
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def ended(self, name: str, state: str, reason: str | None) -> None:
        self.told.append((name, state))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Four cells."""
    return make_plan(str(write_sweep_file(tmp_path_factory.mktemp("plan"))), seeds=2)


def swept(plan: Plan, home: Path, executor: Scripted, **asked: bool) -> list[tuple[str, str]]:
    """Run the plan; returns what the observer was told of the ends of cells."""
    (home / "cache").mkdir(parents=True, exist_ok=True)
    write_json(result_path(find_stage("base"), plan.first_spec, home), [])
    observer = Listening()
    SweepRun(plan, home, "bench run", 1, lambda slots: executor, **asked).run(observer)
    return observer.told


ALL = ["with-s0", "without-s0", "with-s1", "without-s1"]


def states(plan: Plan, home: Path) -> list[str]:
    return [plan.record(cell, home).state for cell in sorted(plan.cells, key=lambda cell: cell.seed)]


def test_others_go_on(plan: Plan, tmp_path: Path) -> None:
    executor = Scripted("failed")
    swept(plan, tmp_path, executor)
    assert executor.started == ALL
    assert states(plan, tmp_path) == ["failed", "pending", "pending", "pending"]


@pytest.mark.parametrize("end", ["failed", "refused", "invalid"])
def test_fail_fast_stops_at_the_first(plan: Plan, tmp_path: Path, end: JobState) -> None:
    executor = Scripted("taken", end)
    with refuses(StoppedError, "run.cell_failed_fast", cell="without-s0"):
        swept(plan, tmp_path, executor, fail_fast=True)
    assert executor.started == ALL[:2]


def test_a_failed_cell_is_started_once_more_after_the_others(plan: Plan, tmp_path: Path) -> None:
    executor = Scripted("failed", "taken", "refused")
    told = swept(plan, tmp_path, executor, retry_failed=True)
    assert executor.started == [*ALL, "with-s0", "with-s1"]
    assert [name for name, _ in told] == ["without-s0", "without-s1", "with-s0", "with-s1"], "each ends once"
    executor = Scripted("failed", "taken", "taken", "taken", "failed")
    told = swept(plan, tmp_path, executor, retry_failed=True)
    assert executor.started == [*ALL, "with-s0"], "but not for ever"
    assert told[-1] == ("with-s0", "failed")


def test_what_failed_twice_stops_a_run_that_is_to_fail_fast(plan: Plan, tmp_path: Path) -> None:
    executor = Scripted("failed", "invalid")
    with refuses(StoppedError, "run.cell_failed_fast", cell="without-s0", state="invalid"):
        swept(plan, tmp_path, executor, retry_failed=True, fail_fast=True)
    executor = Scripted("failed", "taken", "taken", "taken", "failed")
    with refuses(StoppedError, "run.cell_failed_fast", cell="with-s0", state="failed"):
        swept(plan, tmp_path / "another", executor, retry_failed=True, fail_fast=True)


class Losing(Scripted):
    """Loses the place of each job so often before it ends."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def start(self, job: Job) -> None:
        super().start(job)
        if job.kind == "cell" and self.started.count(self.started[-1]) <= self.times:
            self._events[-1] = Ended(job, "failed", "its worker was lost", where="node7", again=True)


@pytest.mark.parametrize(("times", "state"), [(0, "taken"), (2, "taken"), (3, "failed")])
def test_a_job_whose_place_was_lost_is_started_elsewhere(plan: Plan, tmp_path: Path, times: int, state: str) -> None:
    """But not for ever: it may be the job that brings its machine down."""
    executor = Losing(times)
    told = swept(plan, tmp_path, executor)
    assert {executor.started.count(cell) for cell in ALL} == {min(times + 1, 3)}
    assert {ended for _, ended in told} == {state}
    if state == "failed":
        assert all("node7" in str(plan.record(cell, tmp_path).reason) for cell in plan.cells)
