"""The run of a sweep: first the shared stages, then the missing work of its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import plugins
from harness.config.hashing import code_digests, data_digests, evaluation_hash
from harness.config.run_spec import RunSpec
from harness.errors import few
from harness.executors.base import Ended, Event, Executor, Job
from harness.plan import Plan, PlannedCell
from harness.plan.filing import under_evaluation
from harness.records import CellRecord
from harness.records.cell import is_cell_directory_name
from harness.records.files import DamagedRecordError, sweep_temporary
from harness.records.lease import epoch_of
from harness.records.registration import REGISTERED
from harness.run.data_checks import contamination, contamination_sentence, record_sources, require_models_and_data
from harness.run.loop import Observer, StageJobs, StoppedError, closing, record_end, run_jobs
from harness.run.question import make_cells, results_in_report, write_question
from harness.run.stages import (
    CELL,
    Stage,
    find_stage,
    input_remarks,
    inputs_of_cell,
    inputs_of_stage,
    require_enough,
    result_path,
    stages_of_cell,
)
from harness.run.stages.load import what_may_be_refused


@dataclass(frozen=True)
class SweepRun:
    plan: Plan
    home: Path
    """The folder with all sweeps, the mirror's database and the cache."""
    command: str
    workers: int
    open_executor: Callable[[int], Executor]
    """Returns an executor with this number of slots. Called only if there is anything to do."""
    retry_invalid: bool = False
    """True if invalid cells are started again, i.e. cells that could not be measured."""
    fail_fast: bool = False
    retry_failed: bool = False
    """True if a failed cell is started once more before it counts as failed."""

    @property
    def folder(self) -> Path:
        return self.plan.folder(self.home)

    def records(self) -> list[CellRecord]:
        """Return the cells of the plan, including those that have not started."""
        return self.plan.records(self.home)

    def missing(self) -> list[PlannedCell]:
        """Return the cells that this run would start, ordered by seed so that pairs of arms are complete early.

        An invalid cell is started again only on request, because the user should first find out why it could not be
        measured.
        """
        return [cell for cell, _ in self._missing_among(self.records())]

    def _missing_among(self, records: Sequence[CellRecord]) -> list[tuple[PlannedCell, CellRecord]]:
        """Return `missing`, for given records of the plan's cells. Each cell comes with its record."""
        ended = {"done"} if self.retry_invalid else {"done", "invalid"}
        found = zip(self.plan.cells, records, strict=True)
        return sorted((one for one in found if one[1].state not in ended), key=lambda one: one[0].seed)

    def run(self, observer: Observer, while_running: Callable[[], object] = lambda: None) -> list[CellRecord]:
        """Do everything that is missing, and return the plan's cells in their final state.

        while_running: called once, when the records exist.
        Raises GateError and RefusedError before any cell starts, and StoppedError if the disk is full. A failed cell
        does not stop the others unless `fail_fast` is set; its state shows the failure.
        """
        self.plan.require_answerable()
        # Killed runs may have left temporary files.
        for place in (self.folder, self.home / "cache", *(self.home / "cache").glob("*/")):
            sweep_temporary(place)
        records = [record.as_it_stands for record in self.records()]
        found = self._missing_among(records)
        missing = [cell for cell, _ in found]
        trained = [cell for cell, record in found if record.lacks == "evaluation"]
        untrained = [cell for cell, record in found if record.lacks != "evaluation"]
        remarks = [*self._superseded(untrained), *self._only_evaluated(trained)]
        remarks += require_models_and_data(self.plan) if missing else []
        self._require_to_be_asked()
        make_cells(self.plan, missing, self.home)
        write_question(self.plan, self.home, self.command, records)
        with ExitStack() as opened:
            executor = None
            if missing or self._stages_for_report():
                # The executor is opened early, so that its workers import modules while the checks below run.
                slots = min(self.workers, max(1, len(missing)))
                executor = opened.enter_context(closing(self.open_executor(slots), observer))
            while_running()
            observer.planned(len(self.plan.cells), len(self.plan.cells) - len(missing))
            if missing:
                record_sources(self.plan, self.home / "cache")
                overlaps = contamination(self.plan, self.home / "cache")
                for sentence in [*remarks, *map(contamination_sentence, overlaps)]:
                    observer.remark(sentence)
            if executor is None:
                return records
            specs, start = {cell.arm: cell.spec for cell in untrained}, find_stage("start")
            loaded = [cell for cell in trained if cell.spec.checkpoint_folder is None]
            to_load = {cell.arm: (cell.spec, start) for cell in loaded if start.needed(cell.spec)}
            self._work(executor, [*specs.values()], [*to_load.values()], missing, observer)
        records = [record.as_it_stands for record in self.records()]
        write_question(self.plan, self.home, self.command, records)
        return records

    def _require_to_be_asked(self) -> None:
        """Raise RefusedError if the question must not be written to its folder now."""

    def _work(
        self,
        executor: Executor,
        specs: Sequence[RunSpec],
        to_load: Sequence[tuple[RunSpec, Stage]],
        missing: Sequence[PlannedCell],
        observer: Observer,
    ) -> None:
        """Run the stages and the cells. specs, to_load: as `specs` and `besides` of `do_stages`."""
        do_stages(executor, specs, self.home, observer, [*to_load, *self._stages_for_report()])
        run_jobs(executor, SweepCells(self, [*missing], observer))

    def _only_evaluated(self, trained: Sequence[PlannedCell]) -> list[str]:
        if not trained or self.plan.request.checkpoint is not None:
            return []
        cells = "1 cell is" if len(trained) == 1 else f"{len(trained)} cells are"
        return [f"{cells} trained already and only evaluated: samples of the same conditions are taken over."]

    def _superseded(self, missing: Sequence[PlannedCell]) -> list[str]:
        """Return a remark if finished cells have the settings of a missing cell but another hash."""
        if not missing:
            return []
        finished: dict[tuple[str, int], CellRecord] = {}
        for path in (self.folder / "cells").glob("*"):
            if is_cell_directory_name(path.name) and (cell := CellRecord.at(path)).state == "done":
                finished[cell.arm, cell.seed] = cell
        alike = [
            cell_name_of(earlier)
            for cell in missing
            if (earlier := finished.get((cell.arm, cell.seed))) and _spec(earlier) == cell.spec.model_dump(mode="json")
        ]
        if not alike:
            return []
        return [
            f"{len(alike)} finished cells in {self.folder} have these settings under another hash (e.g. {alike[0]}): "
            "the data, the model's files, the code of a plug-in or bench's own numerics have changed since. They stay "
            "as they are, and new cells are trained beside them. To continue with them, restore what changed."
        ]

    def _stages_for_report(self) -> list[tuple[RunSpec, Stage]]:
        """Return the missing stages that the report needs for each arm's starting weights.

        These are their evaluation, and stages whose results reports show, such as best-of-n.
        """
        if self.plan.request.checkpoint is not None:
            return []
        base = find_stage("base")
        wanted: dict[Path, tuple[RunSpec, Stage]] = {}
        for spec in self.plan.arms.values():
            wanted.setdefault(result_path(base, spec, self.home), (spec, base))
        # The stages are keyed by path, so that arms with the same start share one job.
        for stage, paths in results_in_report(self.plan.arms, self.home).items():
            wanted |= {path: (self.plan.arms[arm], find_stage(stage)) for arm, path in paths.items()}
        return [one for path, one in wanted.items() if not path.exists()]


def _spec(cell: CellRecord) -> dict[str, object] | None:
    try:
        return cell.spec
    except DamagedRecordError:
        return None


@dataclass
class SweepCells:
    run: SweepRun
    waiting: list[PlannedCell]
    observer: Observer
    started: dict[str, PlannedCell] = field(default_factory=dict)
    """The cells that were started, by the paths of their jobs."""
    retried: set[str] = field(default_factory=set)
    """The paths of the jobs that were started a second time."""

    def next(self) -> Job | None:
        return self._start(self.waiting[0]) if self.waiting else None

    def _start(self, cell: PlannedCell) -> Job:
        self.waiting.remove(cell)
        job = cell_job(self._record(cell), cell.spec, self.run.home)
        self.started[job.path] = cell
        return job

    def _record(self, cell: PlannedCell) -> CellRecord:
        return self.run.plan.record(cell, self.run.home)

    def is_over(self) -> bool:
        return not self.waiting

    def progress(self, job: Job, event: Event) -> bool:
        if remark := event.pop("remark", None):
            self.observer.remark(remark)
        else:
            self.observer.progress(cell_name(job), event)
        return False

    def ended(self, ended: Ended) -> None:
        record = under_evaluation(CellRecord.at(self.run.home / ended.job.path), evaluation_hash(ended.job.spec))
        self._go_on_after(record_end(ended, record, self._is_retried(ended)))

    def _is_retried(self, ended: Ended) -> bool:
        has_failed = ended.state in ("refused", "failed")
        return has_failed and self.run.retry_failed and ended.job.path not in self.retried

    def _go_on_after(self, ended: Ended) -> None:
        state = {"refused": "failed", "away": "interrupted"}.get(ended.state, ended.state)
        name = cell_name(ended.job)
        if self._is_retried(ended):
            self.retried.add(ended.job.path)
            self.waiting.append(self.started[ended.job.path])
            self.observer.remark(f"{name} failed and is started once more: {ended.reason}")
            return
        self.observer.ended(name, state, ended.reason_and_place)
        if ended.state == "away":
            self._put_off_cells_with_judges()
        elif state == "interrupted":
            raise StoppedError("run.cell_stopped", cell=name, reason=ended.reason)
        if self.run.fail_fast and state in ("failed", "invalid"):
            raise StoppedError("run.cell_failed_fast", cell=name, state=state, reason=ended.reason)

    def _put_off_cells_with_judges(self) -> None:
        """Put off all cells that ask a judge, because each would wait for the unreachable judge.

        The next run starts them.
        """
        put_off = [cell for cell in self.waiting if cell.spec.judges]
        self.waiting = [cell for cell in self.waiting if cell not in put_off]
        if put_off:
            names = few([f"{cell.arm}-s{cell.seed}" for cell in put_off])
            self.observer.remark(f"not started, since a judge is away: {names}; the next run starts them")


def do_stages(
    executor: Executor,
    specs: Sequence[RunSpec],
    home: Path,
    observer: Observer,
    besides: Sequence[tuple[RunSpec, Stage]] = (),
) -> None:
    """Do the work that cells share: load the models as a test, then make each stage after its inputs.

    specs: the spec of one cell of each arm that is to be trained.
    besides: further stages, each with a spec, that other cells or the report need.
    Raises RefusedError and StoppedError.
    """
    evaluated = [spec for spec, _ in besides]
    # The order is reversed twice, so that the first of several equal specs is kept.
    distinct_loads = {what_may_be_refused(spec): spec for spec in reversed([*specs, *evaluated])}
    loads = [_job(find_stage("load").name, home, home, spec) for spec in reversed(distinct_loads.values())]
    run_jobs(executor, StageJobs(loads, home, observer))
    make_missing(executor, [(spec, stage) for spec in specs for stage in stages_of_cell(spec)], home, observer)
    for sentence in dict.fromkeys(remark for spec in specs for remark in input_remarks(spec, home)):
        observer.remark(sentence)
    for spec in specs:
        require_enough(spec, home)
    make_missing(executor, besides, home, observer)


def make_missing(executor: Executor, wanted: Sequence[tuple[RunSpec, Stage]], home: Path, observer: Observer) -> None:
    """Make the stages whose results are missing, each after the stages that it reads.

    wanted: as in `missing_stage_jobs`. Raises RefusedError and StoppedError.
    """
    # Each pass makes the stages whose inputs exist by then.
    while jobs := missing_stage_jobs(wanted, home):
        run_jobs(executor, StageJobs(jobs, home, observer))


def missing_stage_jobs(wanted: Sequence[tuple[RunSpec, Stage]], home: Path) -> list[Job]:
    """Return a job for each stage that is missing and can be made now, among these stages and those that they read.

    wanted: stages, each with the spec of a cell.
    """
    # The stages are keyed by path, so that specs that share a result share one job.
    every = {
        result_path(stage, spec, home): (stage, spec)
        for spec, last in wanted
        for stage in (*inputs_of_stage(last, spec), last)
    }
    jobs = []
    for path, (stage, spec) in every.items():
        inputs = [result_path(one, spec, home) for one in inputs_of_stage(stage, spec)]
        if not path.exists() and all(one.exists() for one in inputs):
            jobs.append(_job(stage.name, path, home, spec, inputs))
    return jobs


def cell_job(record: CellRecord, spec: RunSpec, home: Path) -> Job:
    inputs = [*inputs_of_cell(spec, home).values(), record.path.parents[1] / REGISTERED]
    # By this epoch, a later check can tell whether another process has run the cell since.
    return replace(_job(CELL, record.path, home, spec, inputs), epoch=epoch_of(record.path))


def _job(kind: str, path: Path, home: Path, spec: RunSpec, inputs: Iterable[Path] = ()) -> Job:
    names, folders = plugins.asked_for()
    return Job(
        kind,
        str(path.relative_to(home)),
        spec,
        names,
        [str(folder) for folder in folders],
        code_digests(spec) | data_digests(spec),
        [str(one.relative_to(home)) for one in inputs if one.exists()],
    )


def cell_name(job: Job) -> str:
    return cell_name_of(CellRecord.at(Path(job.path)))


def cell_name_of(cell: CellRecord) -> str:
    return f"{cell.arm}-s{cell.seed}"
