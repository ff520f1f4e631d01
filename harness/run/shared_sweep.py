"""A sweep that several processes share, on one machine or on many: each takes cells that nobody else runs.

They meet in the home only. A lease says who runs a cell, and the records say how it ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError, few
from harness.executors.base import Ended, Executor, Job
from harness.plan import PlannedCell
from harness.records.files import DamagedRecordError, read_last_row
from harness.records.lease import LeaseTakenError, hold_lease, is_leased, look_at_lease
from harness.records.sweep import ENDED, read_sweep
from harness.run.loop import Observer, run_jobs
from harness.run.stages import Stage, lease_folder, result_path
from harness.run.sweep import SweepCells, SweepRun, after_inputs, cell_name, cell_name_of, do_stages, make_missing

LOOK_EVERY_S = 10.0
"""How often a process that shares a sweep looks at the cells of others."""
_LOOK_SHARE = 0.02
"""The share of its time that it looks around at most, on a slow disk."""
_REACH_CELLS = 16


@dataclass(frozen=True)
class WorkerRun(SweepRun):
    """One of several processes, here or on other machines, that share the cells of a plan: `bench worker`.

    waits: stay until every cell has ended, and take over those of processes that die; else until each cell that is left
    is run by a living process. ran: by name, how each cell ended that this process ran.
    """

    waits: bool = False
    ran: dict[str, str] = field(default_factory=dict)

    def _require_to_be_asked(self) -> None:
        """Raise RefusedError where other processes run cells of another question of this name."""
        try:
            known = read_sweep(self.folder)
        except (FileNotFoundError, DamagedRecordError):  # written anew by the run
            return
        ours = self.records()
        if {(cell.path, cell.evaluation) for cell in known.cells} == {(cell.path, cell.evaluation) for cell in ours}:
            return
        if not (running := [cell_name_of(cell) for cell in known.cells if cell.state == "running"]):
            return
        if {(cell.arm, cell.seed) for cell in known.cells} == {(cell.arm, cell.seed) for cell in ours}:
            why = "with other settings, data, model files, plug-ins or numerics of bench than here"
        else:
            why = "of another choice of arms and seeds"
        raise RefusedError(
            f"{self.folder}: other processes run {few(running)}, {why}, and all that share a sweep must ask the same. "
            f"They ask `{known.command}`. Ask that here too, or give this question another `name:` or --home."
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
        # Last, and by whoever is free first: no cell waits for it.
        make_missing(executor, after_inputs(self._stages_for_report()), self.home, observer)

    def _stages_for_report(self) -> list[tuple[RunSpec, Stage]]:
        """Those that nobody is making."""
        wanted = super()._stages_for_report()
        return [(spec, one) for spec, one in wanted if not is_leased(lease_folder(result_path(one, spec, self.home)))]


@dataclass
class _SharedCells(SweepCells):
    """The cells of a sweep of which other processes take some.

    free: those that nobody ran at the last look, in the order of `waiting`. next_look_s: when the next one is due.
    seen_elsewhere: by name, those that another process ran at some look.
    """

    run: WorkerRun
    free: list[PlannedCell] = field(default_factory=list)
    next_look_s: float = 0.0
    seen_elsewhere: set[str] = field(default_factory=set)

    def next(self) -> Job | None:
        self._look_around()
        while self.free:
            # Processes that start together do not all reach for the first one.
            cell = self.free.pop(random.randrange(min(_REACH_CELLS, len(self.free))))
            record = self._record(cell)
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

    def progress(self, job: Job, event: dict[str, Any]) -> bool:
        self._look_around()
        return super().progress(job, event)

    def ended(self, ended: Ended) -> None:
        if ended.state == "taken":  # until whoever was quicker has done it
            self.waiting.append(self.started[ended.job.path])
        else:
            self.run.ran[cell_name(ended.job)] = "failed" if ended.state == "refused" else ended.state
            super().ended(ended)

    def _look_around(self) -> None:
        """Find out, at times, what other processes have done."""
        began_s = time.monotonic()
        if began_s < self.next_look_s:
            return
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
        """Whether another process has come to its end, which is told."""
        status = self._record(cell).read_status()
        if has_ended := status["state"] in ENDED:
            self.waiting.remove(cell)
            self.observer.ended(cell_name_of(self._record(cell)), status["state"], status.get("reason"))
        return has_ended

    def _done_frac(self, cell: PlannedCell) -> float:
        """The share of a cell that another process has done, in [0, 1]."""
        try:
            row = read_last_row(self._record(cell).path / "steps.jsonl") or {}
        except DamagedRecordError:  # whoever runs it says so
            return 0.0
        tokens = cell.spec.budget.tokens
        of_budget = row.get("generated_tokens", 0) / tokens if tokens else 0.0
        return float(min(1.0, max(row.get("step", 0) / max(1, cell.spec.train.steps), of_budget)))


def _free_of_the_dead(folder: Path) -> bool:
    """Give back the lease of an owner that died; whether nobody else did or runs the cell again.

    The owner is known to be dead here, where its lease was watched: a worker process would have to watch it anew.
    """
    try:
        with hold_lease(folder):
            return True
    except LeaseTakenError:
        return False
    except OSError:  # the cell's own job says what is wrong with its folder
        return True
