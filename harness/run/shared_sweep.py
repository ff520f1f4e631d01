"""A sweep that several processes share, on one or several machines. Each takes cells that no other process is running.

The processes communicate only through files in the home. A lease names the process that runs a cell, and the records
say how the cell ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError, few
from harness.executors.base import Ended, Event, Executor, Job
from harness.plan import PlannedCell
from harness.records.files import DamagedRecordError, read_last_row
from harness.records.lease import LeaseTakenError, hold_lease, is_leased, look_at_lease
from harness.records.sweep import ENDED, read_sweep
from harness.run.loop import Observer, run_jobs
from harness.run.stages import Stage, lease_folder, result_path
from harness.run.sweep import SweepCells, SweepRun, cell_name, cell_name_of, do_stages, make_missing

LOOK_EVERY_S = 10.0
"""The time between two checks of the cells that other processes run."""
_LOOK_SHARE = 0.02
"""The largest share of its time that a process spends on these checks, if the disk is slow."""
_REACH_CELLS = 16
"""The number of next free cells from which a process picks one at random."""


@dataclass(frozen=True)
class WorkerRun(SweepRun):
    """A process that shares the cells of a plan with others, here or on other machines: `bench worker`."""

    waits: bool = False
    """True if it stays until every cell has ended, and takes over the cells of processes that die.

    If False, stay only until all remaining cells are run by live processes.
    """
    ran: dict[str, str] = field(default_factory=dict)
    """The final state of each cell that this process ran, by name."""

    def _require_to_be_asked(self) -> None:
        """Raise RefusedError if other processes run cells of another question with the same name."""
        try:
            known = read_sweep(self.folder)
        except (FileNotFoundError, DamagedRecordError):
            # The run will write a new sweep.json.
            return
        ours = self.records()
        if {(cell.path, cell.evaluation) for cell in known.cells} == {(cell.path, cell.evaluation) for cell in ours}:
            return
        # If nobody runs the recorded question, this run may replace it.
        if not (running := [cell_name_of(cell) for cell in known.cells if cell.state == "running"]):
            return
        if {(cell.arm, cell.seed) for cell in known.cells} == {(cell.arm, cell.seed) for cell in ours}:
            why = "other settings, data, model files, plug-ins or numerics of bench"
        else:
            why = "another choice of arms and seeds"
        raise RefusedError(
            "run.another_question_runs", folder=self.folder, running=few(running), why=why, command=known.command
        )

    def _work(
        self,
        executor: Executor,
        specs: Sequence[RunSpec],
        to_load: Sequence[tuple[RunSpec, Stage]],
        missing: Sequence[PlannedCell],
        observer: Observer,
    ) -> None:
        do_stages(executor, specs, self.home, observer, to_load)
        run_jobs(executor, _SharedCells(self, [*missing], observer))
        # These stages come last, in the first process that is free, because no cell waits for them.
        make_missing(executor, self._stages_for_report(), self.home, observer)

    def _stages_for_report(self) -> list[tuple[RunSpec, Stage]]:
        """Return the missing stages of the report that no other process is making."""
        wanted = super()._stages_for_report()
        return [(spec, one) for spec, one in wanted if not is_leased(lease_folder(result_path(one, spec, self.home)))]


@dataclass
class _SharedCells(SweepCells):
    run: WorkerRun
    free: list[PlannedCell] = field(default_factory=list)
    """The cells that no process ran at the last check, in the order of `waiting`."""
    next_look_s: float = 0.0
    seen_elsewhere: set[str] = field(default_factory=set)
    """The names of cells that another process was seen to run at any check."""

    def next(self) -> Job | None:
        self._look_around()
        while self.free:
            # The choice is random, so that processes that start together do not all try the same cell.
            cell = self.free.pop(random.randrange(min(_REACH_CELLS, len(self.free))))
            record = self._record(cell)
            # The last check may be some seconds old.
            if record.state == "running" or self._has_ended(cell):
                continue
            if cell_name_of(record) in self.seen_elsewhere and not _free_of_the_dead(record.path):
                continue
            return self._start(cell)
        return None

    def is_over(self) -> bool:
        if self.run.waits:
            return not self.waiting
        return all(look_at_lease(self._record(cell).path) == "held" for cell in self.waiting)

    def progress(self, job: Job, event: Event) -> bool:
        self._look_around()
        return super().progress(job, event)

    def _go_on_after(self, ended: Ended) -> None:
        # Another process was faster. Wait until it has finished the cell.
        if ended.state == "taken":
            self.waiting.append(self.started[ended.job.path])
        else:
            self.run.ran[cell_name(ended.job)] = "failed" if ended.state == "refused" else ended.state
            super()._go_on_after(ended)

    def _look_around(self) -> None:
        """Check, if it is due, which cells other processes are running or have finished."""
        began_s = time.monotonic()
        if began_s < self.next_look_s:
            return
        # This iterates over a copy of `waiting`, because `_has_ended` removes cells from it.
        self.free, elsewhere = [], {}
        for cell in [*self.waiting]:
            if is_leased(self._record(cell).path):
                elsewhere[cell_name_of(self._record(cell))] = self._done_frac(cell)
            elif not self._has_ended(cell):
                self.free.append(cell)
        self.seen_elsewhere |= elsewhere.keys()
        self.observer.elsewhere(elsewhere)
        now_s = time.monotonic()
        self.next_look_s = now_s + max(LOOK_EVERY_S, (now_s - began_s) / _LOOK_SHARE)

    def _has_ended(self, cell: PlannedCell) -> bool:
        """Return whether another process has finished the cell. If so, report it."""
        status = self._record(cell).read_status()
        if has_ended := status["state"] in ENDED:
            self.waiting.remove(cell)
            self.observer.ended(cell_name_of(self._record(cell)), status["state"], status.get("reason"))
        return has_ended

    def _done_frac(self, cell: PlannedCell) -> float:
        """Return the fraction of a cell that another process has completed, in [0, 1]."""
        try:
            row = read_last_row(self._record(cell).path / "steps.jsonl") or {}
        except DamagedRecordError:
            # The process that runs the cell reports the damage.
            return 0.0
        of_budget, _ = cell.spec.budget.most_used(row)
        return float(min(1.0, max(row.get("step", 0) / max(1, cell.spec.train.steps), of_budget)))


def _free_of_the_dead(folder: Path) -> bool:
    """Release the lease of a dead owner. Return False if another process has taken the cell.

    This process has watched the lease and knows that its owner is dead. Otherwise the worker that runs the cell would
    have to watch the lease again.
    """
    try:
        with hold_lease(folder):
            return True
    except LeaseTakenError:
        return False
    except OSError:
        # The cell's job will report the fault of its folder.
        return True
