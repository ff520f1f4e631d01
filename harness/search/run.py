"""A search's run: workers take trials, train their cells one seed after another, and tell Optuna what came of them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import RefusedError
from harness.executors.local import Ended, LocalPool
from harness.plan import PlannedCell
from harness.plan.search_plan import SearchPlan, Values
from harness.records import CellRecord
from harness.records.lease import STALE_AFTER_S, hold_lease
from harness.run.inputs import record_sources, require_inputs
from harness.run.jobs import DISK_FULL, Job
from harness.run.stages import stage_job
from harness.run.sweep import Observer, StoppedError, SweepRun, run_stages
from harness.search.records import STATES, arm_name, plan_of_trials, write_study
from harness.search.study import WORKERS, SearchStudy
from harness.search.trials import Pruning, final_values, note_spent, spent_on

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

HEARTBEAT_S = 30.0
IDLE_TRIALS = 20
"""So many trials in a row that used nothing of the budget end a search without a limit of trials."""
WAIT_S = 1.0
"""Between two looks at a trial of the same setting that somebody else trains."""


@dataclass
class SearchRun:
    """One `bench tune`. `trials`: at most so many in all, whoever ran them; None: no limit."""

    plan: SearchPlan
    home: Path
    command: str
    workers: int
    trials: int | None
    storage_url: str | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stage_lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _faults: list[BaseException] = field(default_factory=list)
    _in_hand: dict[int, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owner = uuid.uuid4().hex
        self.study = SearchStudy(self.plan, self.folder, self.storage_url)

    @property
    def folder(self) -> Path:
        return self.home / self.plan.sweep.name

    def run(self, observer: Observer, while_running: Callable[[], Any] = lambda: None) -> dict[str, Any]:
        """Search until the budget is used up; returns study.json. `while_running` is called once, when the records
        exist. Raises RefusedError before any trial started, StoppedError when the disk is full. Left by Ctrl-C or a
        kill, its trials are taken up by the next run."""
        base = self.plan.plan({"default": {}})
        if self._budget_is_left(0):
            for sentence in require_inputs(base):
                observer.remark(sentence)
        self.write()
        while_running()
        trials = self.study.trials()
        observer.planned(self.trials, sum(trial.state.is_finished() for trial in trials))
        observer.used(self._used(trials))
        if self._budget_is_left(0) or self.study.is_any_abandoned():
            record_sources(base, self.home / "cache")
            self._work_in_threads(observer, base.first_spec)
        if self.trials is None and self._is_used_up(self.study.trials()):
            observer.remark(
                f"the last {IDLE_TRIALS} trials used nothing of the budget, as settings that were tried before or "
                "cannot be tried: the search ends"
            )
        if running := self.study.running():
            observer.remark(self._in_other_hands(running))
        return self.write(with_importances=True)

    def _in_other_hands(self, running: Sequence[int]) -> str:
        what = f"not ended yet: trial {', '.join(map(str, running))}, which another worker has in hand"
        if self.storage_url is None:
            return what
        return (
            f"{what}, or whose worker is not yet known to be dead: {STALE_AFTER_S:.0f} s after its last sign of life "
            "the same command takes it up"
        )

    def _work_in_threads(self, observer: Observer, first_spec: Any) -> None:
        with self._known_as_alive(), ExitStack() as stack:
            pools = [stack.enter_context(LocalPool(1)) for _ in range(self.workers)]
            run_stages(pools[0], [first_spec], {}, self.home, observer)
            stack.enter_context(self._heartbeat())
            threads = [threading.Thread(target=self._work, args=(pool, observer), daemon=True) for pool in pools]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    while thread.is_alive():  # a join without a limit would not be broken by Ctrl-C
                        thread.join(0.5)
            finally:
                self._stopping.set()
        if self._faults:
            raise self._faults[0]

    @contextmanager
    def _known_as_alive(self) -> Iterator[None]:
        """Hold a lease in the search's folder, by which others know whose trials are worked on."""
        lease = self.folder / WORKERS / self._owner
        with ExitStack() as held:
            with self.study.turn():
                lease.mkdir(parents=True)
                held.enter_context(hold_lease(lease))
            yield
        self.study.forget_dead_workers()

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Say now and then in the storage that the trials in hand are worked on, for machines that see only that."""
        from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError

        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT_S):
                with self._lock:
                    for trial in self._in_hand.values():
                        # A database that is busy now is asked again in half a minute; of a trial that somebody else
                        # has ended `_work` hears by itself.
                        with suppress(StorageInternalError, UpdateFinishedTrialError):
                            self.study.claim(trial, self._owner)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _work(self, pool: LocalPool, observer: Observer) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            while not self._stopping.is_set() and (taken := self._next_trial()) is not None:
                try:
                    self._do(taken, pool, observer)
                except UpdateFinishedTrialError:  # somebody who took us for dead was quicker: the trial is theirs
                    number = taken.trial.number
                    with self._lock:
                        self._in_hand.pop(number, None)
                        observer.ended(
                            arm_name(number), "taken", "another worker, which took this one for dead, has it"
                        )
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one
            if not self._stopping.is_set():
                self._faults.append(error)
                self._stopping.set()

    def _next_trial(self) -> _Taken | None:
        """One that a dead worker left, else a new one; None when the budget is used up."""
        with self._lock, self.study.turn():
            trial = self.study.take_up(self._owner)
            if trial is None:
                if not self._budget_is_left(len(self.study.trials())):
                    return None
                trial = self.study.ask(self._owner)
            return self._taken(trial)

    def _taken(self, trial: Trial) -> _Taken:
        """A trial of ours from now on, its values drawn. In the turn in which it was found: so draws do not depend on
        who else draws, and of two trials of one setting one knows of the other."""
        self._in_hand[trial.number] = trial
        values = self.study.draw(trial)
        try:
            cells = self.plan.plan({arm_name(trial.number): values}).cells
        except RefusedError as error:
            return _Taken(trial, values, [], None, str(error))
        first = self.study.first_of(trial, cells[0].hash)
        trial.set_user_attr("hash", cells[0].hash)
        if first is not None:
            trial.set_user_attr("same_as", first.number)
        return _Taken(trial, values, cells, None if first is None else first.number)

    def _budget_is_left(self, started: int) -> bool:
        """Whether another trial may start when so many have started, and not all of them ended."""
        trials = self.study.trials()
        if self.trials is not None and max(started, sum(t.state.is_finished() for t in trials)) >= self.trials:
            return False
        if self.trials is None and self._is_used_up(trials):
            return False
        return all(share < 1 for share in self._used(trials).values())

    def _used(self, trials: Sequence[FrozenTrial]) -> dict[str, float]:
        """The budget's bounds of tokens and hours, in words, with the share of each that is used."""
        budget = self.plan.search.budget
        spent = [spent_on(trial, self.folder) for trial in trials]
        used = {}
        if budget.tokens is not None:
            used[f"{budget.tokens:,} tokens"] = sum(one.generated_tokens for one in spent) / budget.tokens
        if budget.hours is not None:
            used[f"{budget.hours:g} h"] = sum(one.seconds for one in spent) / 3600 / budget.hours
        return used

    def _is_used_up(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether nothing new is to be had: the last trials used nothing of the budget, as settings that were tried
        before, or that cannot be tried. Of tokens or hours alone it would never be used up."""
        last = [spent_on(trial, self.folder) for trial in trials if trial.state.is_finished()][-IDLE_TRIALS:]
        counts_hours = self.plan.search.budget.hours is not None
        return len(last) == IDLE_TRIALS and not any(
            one.generated_tokens or (counts_hours and one.seconds) for one in last
        )

    def _do(self, taken: _Taken, pool: LocalPool, observer: Observer) -> None:
        if taken.refused is not None:  # values that do not go together: nothing can be measured there
            self._tell(taken.trial, "FAIL", reason=taken.refused, observer=observer)
        elif taken.same_as is not None:
            self._wait_for(taken.trial, taken.same_as, pool, observer)
        else:
            self._train(taken.trial, taken.values, taken.cells, pool, observer)

    def _wait_for(self, trial: Trial, first: int, pool: LocalPool, observer: Observer) -> None:
        """A setting that was trained, or is being trained, ends as that trial did."""
        while not self._stopping.is_set():
            with self._lock:
                same = self.study.study.get_trials()[first]
                if same.state.is_finished():
                    reason = f"the same setting as trial {first}"
                    self._tell(trial, same.state.name, values=same.values, reason=reason, observer=observer)
                    return
                with self.study.turn():
                    left = self.study.take_up(self._owner, first)
                    taken = None if left is None else self._taken(left)
            if taken is not None:  # its worker died: nobody else may be there to take it up
                self._do(taken, pool, observer)
            else:
                time.sleep(WAIT_S)

    def _train(
        self, trial: Trial, values: Values, cells: list[PlannedCell], pool: LocalPool, observer: Observer
    ) -> None:
        plan = self.plan.plan({arm_name(trial.number): values})
        records = [plan.record(cell, self.home) for cell in cells]
        sweep_run = SweepRun(plan, self.home, self.command, 1)
        with self._lock:
            trial.set_user_attr("cells", [record.path.name for record in records])
            sweep_run.make_cells(sweep_run.missing())
            self.write()
        try:
            with self._stage_lock:  # what trials share is made once
                run_stages(pool, [cells[0].spec], {}, self.home, _Silent(), try_loading=False)
        except (RefusedError, StoppedError) as error:
            if self._stopping.is_set() or DISK_FULL in str(error):
                raise
            self._tell(trial, "FAIL", reason=str(error), observer=observer)
            return
        pruning = Pruning(trial, self.plan, self._lock)
        for place, (cell, record) in enumerate(zip(cells, records, strict=True)):
            if record.state != "done":
                ended = self._run_cell(cell, record, pool, observer, pruning)
                if self._stopping.is_set():
                    return
                if pruning.reason is None and ended.state != "done":
                    self._fail(trial, record, ended, observer)
                    return
            if pruning.reason is None:
                pruning.seed_ended(record, is_last=place == len(cells) - 1)
            if pruning.reason is not None:
                if record.state == "interrupted" and not pruning.is_taken:
                    remedy = f"`bench tune --finish {trial.number}` trains it to the end"
                    record.write_status("interrupted", reason=f"{pruning.reason}; {remedy}")
                self._tell(trial, "PRUNED", reason=pruning.reason, observer=observer)
                return
        scores = final_values(records, self.plan.objectives)
        if isinstance(scores, str):
            self._tell(trial, "FAIL", reason=scores, observer=observer)
        else:
            self._tell(trial, "COMPLETE", values=scores, observer=observer)

    def _run_cell(
        self, cell: PlannedCell, record: CellRecord, pool: LocalPool, observer: Observer, pruning: Pruning
    ) -> Ended:
        ends: list[Ended] = []
        name = f"{cell.arm}-s{cell.seed}"

        def show(job: Job, event: dict[str, Any]) -> None:
            with self._lock:
                observer.progress(cell.arm, event)
            if pruning.is_hopeless(record):
                pool.cancel(job)

        job = stage_job("cell", record.path, cell.spec, self.home)
        pool.run([job], show, ends.append)
        while ends[-1].state == "taken" and not self._stopping.is_set():
            # By a worker whose search was killed, and which has not noticed yet.
            time.sleep(WAIT_S)
            pool.run([job], show, ends.append)
        ended = ends[-1]
        if ended.state == "interrupted" and pruning.reason is None and not self._stopping.is_set():
            raise StoppedError(f"{name}: {ended.reason}.")
        return ended

    def _fail(self, trial: Trial, record: CellRecord, ended: Ended, observer: Observer) -> None:
        """A cell that could not be measured: the trial fails with its reason, and the search goes on."""
        if ended.output:
            with record.log.open("a", encoding="utf-8") as handle:
                handle.write(ended.output)
        record.write_status("invalid" if ended.state == "invalid" else "failed", reason=ended.reason)
        self._tell(trial, "FAIL", reason=f"{record.path.name}: {ended.reason}", observer=observer)

    def _tell(
        self,
        trial: Trial,
        state: str,
        values: list[float] | None = None,
        reason: str | None = None,
        *,
        observer: Observer,
    ) -> None:
        from optuna.trial import TrialState

        with self._lock:
            if reason is not None:
                trial.set_user_attr("reason", reason)
            told = values if state == "COMPLETE" else None
            note_spent(trial, self.folder)
            self.study.study.tell(trial.number, told, TrialState[state])
            self._in_hand.pop(trial.number, None)
            self.write()
            observer.used(self._used(self.study.trials()))
            observer.ended(arm_name(trial.number), "done" if state == "COMPLETE" else STATES[state], reason)

    def write(self, with_importances: bool = False) -> dict[str, Any]:
        """Write sweep.json and study.json, as things stand; returns study.json."""
        with self._lock:
            budget = self.plan.search.budget.model_dump() | {"trials": self.trials}
            with self.study.turn():
                SweepRun(plan_of_trials(self.study), self.home, self.command, 1).write_question()
                return write_study(self.study, self.command, budget, with_importances)


@dataclass(frozen=True)
class _Taken:
    """A trial in hand. `cells`: to be trained, none where the values are `refused`; `same_as`: the number of the trial
    that has the same ones."""

    trial: Trial
    values: Values
    cells: list[PlannedCell]
    same_as: int | None
    refused: str | None = None


class _Silent:
    """The observer of a trial's stages, most of which are there already."""

    def planned(self, total: int | None, done: int) -> None: ...

    def used(self, budget: Mapping[str, float]) -> None: ...

    def remark(self, sentence: str) -> None: ...

    def stage(self, name: str, event: dict[str, Any] | None) -> None: ...

    def progress(self, name: str, event: dict[str, Any]) -> None: ...

    def ended(self, name: str, state: str, reason: str | None) -> None: ...
