"""The run of a search: trials are started one after another, and their cells are trained one seed at a time.

The results are passed to Optuna.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RefusedError
from harness.executors.base import Ended, Event, Executor, Job
from harness.plan import PlannedCell
from harness.plan.search_plan import SearchPlan
from harness.records import CellRecord
from harness.records.lease import STALE_AFTER_S, hold_lease
from harness.run.data_checks import record_sources, require_models_and_data
from harness.run.loop import (
    DISK_FULL,
    Observer,
    StoppedError,
    closing,
    record_end,
    record_state,
    require_made,
    run_jobs,
)
from harness.run.question import make_cells, write_question
from harness.run.stages import CELL, stages_of_cell
from harness.run.sweep import cell_job, do_stages, missing_stage_jobs
from harness.search.records import STATES, arm_name, plan_of_trials, write_study
from harness.search.study import WORKERS, SearchStudy
from harness.search.trials import Pruning, final_values, note_spent, spent_on

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

HEARTBEAT_S = 30.0
IDLE_TRIALS = 20
"""A search without a limit on trials ends if this many trials in a row used nothing of the budget."""
WAIT_S = 1.0
"""The wait before checking again on a trial of the same setting, or a cell, that another worker is training."""


@dataclass
class SearchRun:
    plan: SearchPlan
    home: Path
    command: str
    workers: int
    open_executor: Callable[[int], Executor]
    """Returns an executor with this number of slots. Called only if there is anything to do."""
    trials: int | None
    """The most trials in all, whoever ran them; None for no limit."""
    storage_url: str | None = None

    def __post_init__(self) -> None:
        self._owner = uuid.uuid4().hex
        self._told_of_waiting = False
        self.study = SearchStudy(self.plan, self.folder, self.storage_url)

    @property
    def folder(self) -> Path:
        return self.home / self.plan.sweep.name

    def run(self, observer: Observer, while_running: Callable[[], object] = lambda: None) -> dict[str, object]:
        """Search until the budget is used up. Return the content of study.json.

        while_running: called once, when the records exist.
        Raises RefusedError before any trial starts. Raises StoppedError for anything that would stop every other trial
        too: a full disk, or a cell that was interrupted or whose server is unreachable. After Ctrl-C or a kill, the
        next run continues the trials.
        """
        base = self.plan.plan({"default": {}})
        if self.budget_is_left(0):
            for sentence in require_models_and_data(base):
                observer.remark(sentence)
        self.write()
        while_running()
        trials = self.study.trials()
        observer.planned(self.trials, sum(trial.state.is_finished() for trial in trials))
        observer.used(self.used(trials))
        # If the budget is used up, only an abandoned trial is left to do. It may take a while to find out whether there
        # is one.
        while not self.budget_is_left(0) and not self.is_settled(observer):
            time.sleep(WAIT_S)
        if self.budget_is_left(0) or self.study.is_any_abandoned():
            record_sources(base, self.home / "cache")
            with closing(self.open_executor(self.workers), observer) as executor, self._worker_lease():
                do_stages(executor, [base.first_spec], self.home, observer)
                run_jobs(executor, _Trials(self, self._owner, self.workers, observer))
        if self.trials is None and self._is_used_up(self.study.trials()):
            observer.remark(
                f"the search ends: the last {IDLE_TRIALS} trials used none of the budget, because their settings were "
                "tried before or cannot be tried"
            )
        if running := self.study.running():
            numbers = ", ".join(map(str, running))
            observer.remark(f"not ended yet: trial {numbers}, which another worker is training")
        return self.write(with_importances=True)

    def is_settled(self, observer: Observer) -> bool:
        """Return whether it is known, for each running trial, if its worker is alive.

        If not, the worker's next heartbeat shows it, or `STALE_AFTER_S` without a heartbeat. The user is told once.
        """
        unknown = self.study.unknown()
        if unknown and not self._told_of_waiting:
            self._told_of_waiting = True
            numbers = ", ".join(map(str, unknown))
            observer.remark(
                f"waiting for a heartbeat from the worker of trial {numbers}; without one, the trial is continued here "
                f"after {STALE_AFTER_S:.0f} s"
            )
        return not unknown

    @contextmanager
    def _worker_lease(self) -> Iterator[None]:
        """Hold a lease in the search's folder, from which other workers know whose trials are running."""
        lease = self.folder / WORKERS / self._owner
        lease.mkdir(parents=True)
        with hold_lease(lease):
            yield
        # This worker's lease has been released by now, so its folder is removed too, unless it left a trial.
        self.study.forget_dead_workers()

    def budget_is_left(self, started: int) -> bool:
        """Return whether another trial may start after `started` have started, some of which may still run."""
        trials = self.study.trials()
        if self.trials is not None and max(started, sum(t.state.is_finished() for t in trials)) >= self.trials:
            return False
        if self.trials is None and self._is_used_up(trials):
            return False
        return all(share < 1 for share in self.used(trials).values())

    def used(self, trials: Sequence[FrozenTrial]) -> dict[str, float]:
        """Return the used share of the budget's limits on tokens and hours, by the limit in words."""
        budget = self.plan.search.budget
        spent = [spent_on(trial, self.folder) for trial in trials]
        used = {}
        if budget.tokens is not None:
            used[f"{budget.tokens:,} tokens"] = sum(one.generated_tokens for one in spent) / budget.tokens
        if budget.hours is not None:
            used[f"{budget.hours:g} h"] = sum(one.seconds for one in spent) / 3600 / budget.hours
        return used

    def _is_used_up(self, trials: Sequence[FrozenTrial]) -> bool:
        """Return whether the search makes no more progress.

        This is so if the last trials used nothing of the budget, because their settings were tried before or are
        invalid. A budget of only tokens or hours would then never be used up.
        """
        last = [spent_on(trial, self.folder) for trial in trials if trial.state.is_finished()][-IDLE_TRIALS:]
        counts_hours = self.plan.search.budget.hours is not None
        return len(last) == IDLE_TRIALS and not any(
            one.generated_tokens or (counts_hours and one.seconds) for one in last
        )

    def write(self, with_importances: bool = False) -> dict[str, object]:
        """Write the present state to sweep.json and study.json. Return the content of study.json."""
        budget = self.plan.search.budget.model_dump() | {"trials": self.trials}
        with self.study.turn():
            write_question(plan_of_trials(self.study), self.home, self.command)
            return write_study(self.study, self.command, budget, with_importances)


@dataclass(eq=False)
class _ActiveTrial:
    trial: Trial
    cells: list[PlannedCell]
    """The cells to train; empty if the values are `refused`."""
    same_as: int | None
    """The number of the earlier trial with the same values, whose result this trial takes; None if there is none."""
    refused: str | None = None
    """The reason why its values contradict each other; None if they do not."""
    pruning: Pruning | None = None
    trained: int = 0
    job: Job | None = None
    rests_until_s: float = 0.0
    """The time, by the monotonic clock, until which the trial waits."""

    @property
    def name(self) -> str:
        return arm_name(self.trial.number)


@dataclass
class _Trials:
    """The trials of a search as a source of jobs.

    As many trials are active as there are slots. Each has at most one running job.
    """

    run: SearchRun
    owner: str
    slots: int
    observer: Observer
    _active: list[_ActiveTrial] = field(default_factory=list)
    _budget_is_used_up: bool = False
    _beaten_s: float = field(default_factory=time.monotonic)

    def next(self) -> Job | None:
        """Return the next job, or None if all active trials must wait and no other trial can start."""
        self._beat()
        while True:
            for active in [active for active in self._active if active.job is None]:
                active.job = self._advance(active)
                if active.job is not None:
                    return active.job
            if len(self._active) >= self.slots or not self._take():
                return None

    def is_over(self) -> bool:
        """Return whether no trial is left: none is active, none may start, and none was abandoned by another worker."""
        if not self._budget_is_used_up or self._active:
            return False
        return self.run.is_settled(self.observer) and not self.run.study.is_any_abandoned()

    def progress(self, job: Job, event: Event) -> bool:
        """Process a report of a running job. Return whether to stop its trial."""
        self._beat()
        if remark := event.pop("remark", None):
            self.observer.remark(remark)
            return False
        if job.kind != CELL:
            return False
        active = self._of(job)
        self.observer.progress(active.name, event)
        assert active.pruning is not None
        return active.pruning.is_hopeless(self._record(active.cells[active.trained]))

    def ended(self, ended: Ended) -> None:
        active = self._of(ended.job)
        active.job = None
        if ended.job.kind != CELL:
            self._stage_ended(active, ended)
        elif ended.state == "taken":  # by a worker whose search was killed, and which is not yet aware of it
            active.rests_until_s = time.monotonic() + WAIT_S
        else:
            self._cell_ended(active, ended)

    def _take(self) -> bool:
        """Start a trial that a dead worker left, or otherwise a new one. Return whether there was one."""
        study = self.run.study
        with study.turn():
            trial = study.take_over_dead(self.owner)
            if trial is None:
                self._budget_is_used_up = not self.run.budget_is_left(len(study.trials()))
                if self._budget_is_used_up:
                    return False
                trial = study.ask(self.owner)
            self._active.append(self._taken(trial))
        return True

    def _taken(self, trial: Trial) -> _ActiveTrial:
        """Return a trial that now belongs to this worker, with its values sampled.

        This happens in the same turn in which the trial was found. So its values do not depend on which other workers
        sample, and one of two trials with the same setting knows of the other.
        """
        study = self.run.study
        values = study.draw(trial)
        try:
            plan = self.run.plan.plan({arm_name(trial.number): values})
        except RefusedError as error:
            return _ActiveTrial(trial, [], None, str(error))
        first = study.first_of(trial, plan.cells[0].hash)
        trial.set_user_attr("hash", plan.cells[0].hash)
        if first is not None:
            trial.set_user_attr("same_as", first.number)
        return _ActiveTrial(trial, plan.cells, None if first is None else first.number)

    def _advance(self, active: _ActiveTrial) -> Job | None:
        """Return the next job of an active trial, or None if the trial has ended or must wait."""
        if time.monotonic() < active.rests_until_s:
            return None
        # Values that contradict each other cannot be measured.
        if active.refused is not None:
            self._tell(active, "FAIL", reason=active.refused)
            return None
        if active.same_as is not None:
            self._wait_for(active, active.same_as)
            return None
        if active.pruning is None:
            self._begin(active)
        spec = active.cells[0].spec
        if jobs := missing_stage_jobs([(spec, stage) for stage in stages_of_cell(spec)], self.run.home):
            under_way = {other.job.path for other in self._active if other.job is not None}
            # A stage that several trials share is made only once.
            return next((job for job in jobs if job.path not in under_way), None)
        # `_seed_done` may end the trial, which removes it from the list.
        while active in self._active:
            cell = active.cells[active.trained]
            if (record := self._record(cell)).state != "done":
                return cell_job(record, cell.spec, self.run.home)
            self._seed_done(active)
        return None

    def _begin(self, active: _ActiveTrial) -> None:
        """Prepare the cells of a trial, and write the trial to the records."""
        active.pruning = Pruning(active.trial, self.run.plan)
        records = [self._record(cell) for cell in active.cells]
        active.trial.set_user_attr("cells", [record.path.name for record in records])
        plan = self.run.plan.plan({active.name: dict(active.trial.params)})
        make_cells(plan, [cell for cell in active.cells if self._record(cell).state != "done"], self.run.home)
        self.run.write()

    def _wait_for(self, active: _ActiveTrial, first: int) -> None:
        """End a trial like the earlier trial with the same setting. If that one is still running, wait."""
        study = self.run.study
        same = study.study.get_trials()[first]
        if same.state.is_finished():
            self._tell(active, same.state.name, values=same.values, reason=f"the same setting as trial {first}")
            return
        active.rests_until_s = time.monotonic() + WAIT_S
        if any(other.trial.number == first for other in self._active):
            return
        with study.turn():
            left = study.take_over_dead(self.owner, first)
            # The worker of that trial died, and there may be no other worker to continue it.
            if left is not None:
                self._active.append(self._taken(left))

    def _stage_ended(self, active: _ActiveTrial, ended: Ended) -> None:
        """Fail a trial if a stage that it needs could not be made."""
        try:
            require_made(ended, self.run.home)
        except (RefusedError, StoppedError) as error:
            # Every further trial would fail for the same reason, so the search stops.
            if ended.reason == DISK_FULL:
                raise
            self._tell(active, "FAIL", reason=str(error))

    def _cell_ended(self, active: _ActiveTrial, ended: Ended) -> None:
        """Process the end of a cell: its trial continues, is pruned, waits or fails, or the search stops."""
        record = CellRecord.at(self.run.home / ended.job.path)
        assert active.pruning is not None
        if ended.state == "done":
            self._seed_done(active)
        # This is checked before the other states, because a cell that the pruner stopped ends as `interrupted` too.
        elif active.pruning.reason is not None:
            self._prune(active, record, ended.job)
        elif ended.state in ("interrupted", "away"):
            raise StoppedError("search.cell_stopped", trial=active.name, seed=record.seed, reason=ended.reason)
        else:  # the cell could not be measured: the trial fails with its reason, and the search goes on
            if record_end(ended, record).state == "taken":
                active.rests_until_s = time.monotonic() + WAIT_S
            else:
                self._tell(active, "FAIL", reason=f"{record.path.name}: {ended.reason}")

    def _seed_done(self, active: _ActiveTrial) -> None:
        """Process the finished cell of a seed: the trial is pruned, continues with the next seed, or is complete."""
        pruning, record = active.pruning, self._record(active.cells[active.trained])
        assert pruning is not None
        active.trained += 1
        is_last = active.trained == len(active.cells)
        if pruning.reason is None:
            pruning.seed_ended(record, is_last)
        if pruning.reason is not None:
            self._prune(active)
        elif is_last:
            scores = final_values([self._record(cell) for cell in active.cells], self.run.plan.objectives)
            if isinstance(scores, str):
                self._tell(active, "FAIL", reason=scores)
            else:
                self._tell(active, "COMPLETE", values=scores)

    def _prune(self, active: _ActiveTrial, record: CellRecord | None = None, stopped: Job | None = None) -> None:
        """End a trial that the pruner rejected. record, stopped: its running cell and job, if there were any."""
        assert active.pruning is not None
        if record is not None and stopped is not None and record.state == "interrupted" and not active.pruning.is_taken:
            remedy = f"`bench tune --finish {active.trial.number}` trains it to the end"
            record_state(stopped, record, "interrupted", f"{active.pruning.reason}; {remedy}")
        self._tell(active, "PRUNED", reason=active.pruning.reason)

    def _tell(
        self, active: _ActiveTrial, state: str, values: list[float] | None = None, reason: str | None = None
    ) -> None:
        """Report to Optuna and the records how a trial ended, unless another worker owns it by now."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        trial, study = active.trial, self.run.study
        # Whatever happens to the trial, this worker does nothing more for it.
        self._active.remove(active)
        is_ours = False
        # Another worker that took this one for dead may own the trial, or have ended it.
        with study.turn(), suppress(UpdateFinishedTrialError):
            if study.is_claimed_by(self.owner, trial.number):
                if reason is not None:
                    trial.set_user_attr("reason", reason)
                # This must precede `tell`, because Optuna accepts no attributes for a trial that has ended.
                note_spent(trial, self.run.folder)
                study.study.tell(trial.number, values if state == "COMPLETE" else None, TrialState[state])
                is_ours = True
        if not is_ours:
            self.observer.ended(active.name, "taken", "another worker, which took this one for dead, has it")
            return
        self.run.write()
        self.observer.used(self.run.used(study.trials()))
        self.observer.ended(active.name, "done" if state == "COMPLETE" else STATES[state], reason)

    def _beat(self) -> None:
        """Renew this worker's claims in the storage every `HEARTBEAT_S`, for workers that see only the storage."""
        if time.monotonic() - self._beaten_s < HEARTBEAT_S:
            return
        from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError

        self._beaten_s = time.monotonic()
        for active in self._active:
            # If the database is busy, the next heartbeat follows in half a minute. If another worker has ended a trial,
            # `_tell` notices it.
            with suppress(StorageInternalError, UpdateFinishedTrialError):
                self.run.study.claim(active.trial, self.owner)

    def _of(self, job: Job) -> _ActiveTrial:
        return next(active for active in self._active if active.job is job)

    def _record(self, cell: PlannedCell) -> CellRecord:
        return cell.record(self.run.folder / "cells")
