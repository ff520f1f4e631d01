"""The question of a run, written next to its records: sweep.json, and all that is needed to ask it again from there.

<sweep>/sweep.json           the question (`harness.records.SweepRecord`)
<sweep>/question/            the sweep file, the profile, and files of the user's own that they name
<sweep>/question/code/       the plug-ins and reward functions with all that they import
<sweep>/cells/<cell>/code/   the user's code that the cell's numbers depend on, as it was when the cell was planned
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import yaml
from pydantic import ValidationError

from evals.metrics import metric_facts, metrics_for
from evals.tasks import get_task
from evals.yaml_file import load_yaml
from harness import plugins
from harness.config.hashing import digest, run_by, semantic_hash, user_code
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.plan import Plan, PlannedCell
from harness.plan.filing import records_of
from harness.plan.gate import values_that_differ
from harness.plan.plan import RECOMMENDED_SEEDS
from harness.plan.profile import EXTENDS, read_profile
from harness.plan.request import SweepRequest
from harness.plan.sweep_file import KEPT, KEPT_CODE, KEPT_PROFILE, SweepFile
from harness.plan.tuning import tuning_record
from harness.records import CellRecord, SweepRecord, read_sweep
from harness.records.cell import write_status
from harness.records.fence import remove
from harness.records.files import DamagedRecordError, is_disk_full, read_json, write_atomic, write_folder, write_json
from harness.records.lease import LeaseTakenError, hold_in_turn, hold_lease
from harness.records.looks import Evaluation, PlannedLooks, first_seeds
from harness.records.study import STUDY
from harness.records.sweep import Asked as AskedRecord
from harness.records.sweep import (
    CellEntry,
    Gate,
    MetricFacts,
    Plugin,
    Screened,
)
from harness.run.data_checks import contamination, data_sources
from harness.run.screening import confirmation_name
from harness.run.stages import STAGES, find_stage, result_path

SWEEP_FILE = "sweep.yaml"
FEWEST_MOST_SEEDS = 12
"""With fewer seeds there is no room for a look before the last."""


def require_same_kind(folder: Path, *, is_search: bool) -> None:
    """Raise RefusedError if a folder already holds records of another kind: arms, a search, or imported results.

    Otherwise the page of one would overwrite that of the other.
    """
    if not folder.is_dir():
        return
    holds_search = (folder / STUDY).exists()
    try:
        known = read_sweep(folder)
    except (FileNotFoundError, DamagedRecordError):
        # The run writes a new sweep.json.
        holds_arms = False
    else:
        holds_search = holds_search or known.is_search
        holds_arms = not known.is_search and any(cell.path.exists() for cell in known.cells)
        if known.is_imported:
            raise RefusedError("run.folder_of_imports", folder=folder)
    if is_search and holds_arms:
        ours, theirs = "a search", "a sweep of arms"
    elif not is_search and holds_search:
        ours, theirs = "a sweep of arms", "a search"
    else:
        return
    raise RefusedError("run.folder_of_another_kind", folder=folder, theirs=theirs, name=folder.name, ours=ours)


def make_cells(plan: Plan, cells: Sequence[PlannedCell], home: Path) -> None:
    """Write the folder, spec and pending status of cells that are to be run.

    Raises RefusedError as `write_question`.
    """
    with _writable(plan.folder(home)):
        for cell, record in zip(cells, records_of(cells, plan.folder(home) / "cells"), strict=True):
            # For a trained cell it is another folder: the cell keeps the spec and code that it was trained with.
            folder = record.evaluation_folder
            # Another `bench run` may have been quicker.
            if record.state in ("running", "done", "damaged"):
                continue
            # If a file is where a folder should be, or the reverse, the cell's own job reports it.
            with suppress(LeaseTakenError, FileExistsError, IsADirectoryError, NotADirectoryError):
                if not folder.exists():
                    write_folder(folder, partial(_fill_cell, cell.spec))
                    continue
                # The folder exists from an earlier plan. Under its lease, the pending status cannot overwrite that of a
                # running cell.
                with hold_lease(record.path, starts=False):
                    if not record.is_done:
                        _fill_cell(cell.spec, folder)


def _fill_cell(spec: RunSpec, folder: Path) -> None:
    """Write what a cell, or another evaluation of a trained one, has before it starts."""
    write_json(folder / "spec.json", spec.model_dump(mode="json"))
    for module in user_code(spec):
        for path, content in module.laid_out():
            _keep(folder / "code" / path, content)
    write_status(folder, "pending", steps=spec.training_steps)


def write_question(plan: Plan, home: Path, command: str, records: Sequence[CellRecord] | None = None) -> SweepRecord:
    """Write sweep.json and the folder `question`; return what sweep.json holds.

    records: of the plan's cells, if they were just read. Raises RefusedError if the files cannot be written.
    """
    folder = plan.folder(home)
    # Checked before anything is written.
    _remember_code(plan)
    with _writable(folder):
        (home / "cache").mkdir(exist_ok=True)
        _keep_files(plan.request, plan.arms.values(), folder / KEPT)
        question = _question(plan, home, command, plan.records(home) if records is None else records)
        question.write()
    return question


def _remember_code(plan: Plan) -> None:
    """Record that this user has run the code of this question.

    Raises RefusedError if the question comes from a run's records, and this user has never run their code.
    """
    modules = {module.digest: module for spec in plan.arms.values() for module in user_code(spec)}
    others = {code: name for spec in plan.arms.values() for code, name in run_by(spec).items()}
    if plugins.is_for_records():
        for module in modules.values():
            plugins.require_trusted(module, str(plan.request.path))
        for code, name in others.items():
            plugins.user_code.require_known(code, name, plan.request.path)
    plugins.user_code.remember([*map(plugins.user_code.of_module, [*modules.values(), *plugins.in_use()]), *others])


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Make the folder of a sweep, and keep other processes from writing the question there meanwhile."""
    try:
        with hold_in_turn(folder):
            yield
    except OSError as error:
        if is_disk_full(error):
            raise
        raise RefusedError(
            "run.folder_not_writable", path=error.filename or folder, reason=os.strerror(error.errno or 0)
        ) from error


def _keep_files(request: SweepRequest, specs: Collection[RunSpec], folder: Path) -> None:
    """Keep what a run from the records alone needs, unless this run started from there."""
    if request.path.parent.resolve() == folder.resolve():
        return
    wanted = {Path(SWEEP_FILE): _sweep_file(request), Path(KEPT_PROFILE): _profile(request.profile_path)}
    for name in sorted({name for spec in specs for name in spec.own_files()}):
        wanted[Path(name)] = plugins.user_file(name).read_bytes()
    for module in [*plugins.in_use(), *(module for spec in specs for module in user_code(spec))]:
        wanted |= {KEPT_CODE / path: content for path, content in module.laid_out()}
    for path, content in wanted.items():
        _keep(folder / path, content)
    # Files that only an earlier question needed must not be read by a run from the records.
    for path in [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) not in wanted]:
        remove(path)


def _sweep_file(request: SweepRequest) -> bytes:
    """Return the file as its author wrote it, or the request as YAML if the file differs from it.

    A sweep that confirms a search has no file of its own.
    """
    try:
        if SweepFile.model_validate(load_yaml(request.path)) == request.sweep:
            return request.path.read_bytes()
    except (RefusedError, ValidationError):
        # The file was edited since it was read for this request.
        pass
    return _as_yaml(request.sweep.model_dump(mode="json", exclude_unset=True, by_alias=True))


def _profile(path: Path) -> bytes:
    """Return the file as its author wrote it, or the resolved profile if it extends another, which may change."""
    return _as_yaml(read_profile(path)) if EXTENDS in load_yaml(path) else path.read_bytes()


def _as_yaml(document: Mapping[str, object]) -> bytes:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True).encode()


def _keep(path: Path, content: bytes) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda aside: aside.write_bytes(content))


def _question(plan: Plan, home: Path, command: str, records: Sequence[CellRecord]) -> SweepRecord:
    request, sweep = plan.request, plan.sweep
    earlier = _earlier(plan.folder(home))
    values = values_that_differ(plan.arms)
    bases = {arm: result_path(find_stage("base"), spec, home) for arm, spec in plan.arms.items()}
    base_scores = {arm: read_json(path) for arm, path in bases.items() if path.exists()}
    # Arms may start from different weights; the report then shows a base score for each.
    start_alike = len({*bases.values()}) == 1
    return SweepRecord(
        path=plan.folder(home),
        kind="search" if sweep.search is not None else "sweep",
        name=sweep.name,
        question=sweep.question,
        profile=plan.profile,
        command=command,
        checkpoint=request.checkpoint,
        arms=list(plan.arms),
        grid=plan.grid,
        leave_one_out=bool(sweep.leave_one_out),
        baseline=plan.baseline,
        metric=plan.metric,
        margin_pp=plan.margin_pp,
        alpha=sweep.compare.alpha,
        new_problems=sweep.compare.new_problems,
        # Verdicts of an earlier run are dropped: its best arms may have been others.
        screening=None if (asked := sweep.screening) is None else Screened(best=asked.best, seeds=asked.seeds),
        seeds=request.seed_list,
        ablate=sweep.under_test,
        co_changes=dict(sweep.co_changes),
        varied={arm: {knob: by_arm[arm] for knob, by_arm in values.items()} for arm in plan.arms},
        cell_entries=[
            CellEntry(arm=cell.arm, seed=cell.seed, hash=cell.hash, dir=cell.path.name, evaluation=cell.evaluation)
            for cell in records
        ],
        tasks=plan.task_names,
        k=list(plan.first_spec.eval.k),
        metrics={name: MetricFacts(**metric_facts(name)) for name in metrics_for(plan.first_spec.eval.k)},
        gate=Gate(ok=plan.gate.ok, differs=plan.gate.differs),
        warnings=plan.warnings,
        budget_tokens=plan.first_spec.budget.tokens,
        contamination=contamination(plan, home / "cache"),
        data=data_sources(plan, home / "cache"),
        base_scores=next(iter(base_scores.values()), []) if start_alike else [],
        base_scores_by_arm={} if start_alike else base_scores,
        **{
            stage: {arm: read_json(path) for arm, path in paths.items() if path.exists()}
            for stage, paths in results_in_report(plan.arms, home).items()
        },
        asked=AskedRecord(
            file=SWEEP_FILE,
            profile=plan.profile,
            folder=str(request.folder.resolve()),
            settings=list(request.settings),
            seeds=request.seeds,
            arms=list(request.arms),
            on_gpu=request.on_gpu(),
        ),
        plugins=[
            Plugin(name=module.name, digest=module.digest, files=sorted(str(path) for path, _ in module.laid_out()))
            for module in plugins.in_use()
        ],
        asks=_asks(plan),
        held_out={
            task.name: n
            for task in map(get_task, plan.first_spec.eval.tasks)
            if (n := task.n_evaluated(None)) is not None
        },
        contrasts=_contrasts(plan),
        evaluation=Evaluation(samples=plan.first_spec.eval.samples, problems=plan.first_spec.eval.problems),
        looks=[] if earlier is None else earlier.looks,
        designs=[] if earlier is None else earlier.designs,
        tuning=tuning_record(request),
    )


def _earlier(folder: Path) -> SweepRecord | None:
    """Return the question last written here, or None if there is none that this version can read."""
    try:
        return read_sweep(folder)
    except (FileNotFoundError, DamagedRecordError):
        return None


def _asks(plan: Plan) -> str:
    """Return the identity of what looks are planned for: arms in training and evaluation, baseline and metric.

    Seeds, samples and problems are left out: asking again with more of them is a further look. The margin is left out
    too, because it moves no interval.
    """
    return digest({"arms": _conditions(plan), "baseline": plan.baseline, "metric": plan.metric})


def _contrasts(plan: Plan) -> list[str]:
    """Return the identities of what looks are counted for: each arm with the baseline, on the compared metric.

    Other arms and tasks are left out: with fewer or more of them, the same numbers are looked at again.
    """
    arms = _conditions(plan, tasks=(plan.metric_task_as_given,))
    return [
        digest({"arms": sorted([of_arm, arms[plan.baseline]]), "task": plan.metric_task, "metric": plan.metric_name})
        for arm, of_arm in arms.items()
        if arm != plan.baseline
    ]


def _conditions(plan: Plan, **evaluated: object) -> dict[str, str]:
    """Map each arm to a hash of its training and evaluation, whatever the number of seeds, samples and problems."""
    # Settings that change how precisely a question is answered, but not the question.
    one_sample = {"samples": 1, "k": (1,), "problems": None, "every": 0, "curve_samples": 1, **evaluated}
    return {
        arm: semantic_hash(spec.model_copy(update={"seed": 0, "eval": spec.eval.model_copy(update=one_sample)}))
        for arm, spec in plan.arms.items()
    }


def write_design(plan: Plan, most_seeds: int | None, home: Path, command: str) -> list[int]:
    """Return the numbers of seeds at which a question is looked at, as `planned_design`, and write them.

    They are fixed before its first cell is made; if they were fixed earlier, they stay. Raises RefusedError if other
    looks were fixed, and as `require_looks`. Raises GateError as `Plan.require_answerable`.
    """
    plan.require_answerable()
    require_looks(plan)
    folder = plan.folder(home)
    with _writable(folder):
        (home / "cache").mkdir(parents=True, exist_ok=True)
    record = _question(plan, home, command, plan.records(home))
    known = record.design
    if known is None:
        design = planned_design(plan, record, most_seeds)
        # Raises if the folder cannot be written, before the design is recorded.
        write_question(plan, home, command)
        record.model_copy(update={"designs": [*record.designs, design]}).write()
        return design.looks
    if most_seeds not in (None, known.looks[-1]):
        asked = f"--most-seeds is {most_seeds}"
    elif known.evaluation != record.evaluation:
        asked = "eval.samples or eval.problems have changed"
    else:
        return known.looks
    raise RefusedError("run.looks_are_fixed", asked=asked, looks=", ".join(map(str, known.looks)))


def require_looks(plan: Plan) -> None:
    """Raise RefusedError for a plan to which further seeds bring no verdict.

    That is a screening, and an evaluation of one checkpoint.
    """
    name = plan.sweep.name
    if plan.sweep.screening is not None:
        raise RefusedError("run.screening_has_no_verdict", name=name, confirmation_name=confirmation_name(name))
    if plan.request.checkpoint is not None:
        raise RefusedError("run.one_checkpoint_has_no_seeds", name=name)


def planned_design(plan: Plan, record: SweepRecord, most_seeds: int | None) -> PlannedLooks:
    """Return the looks at a question as `planned_looks` has them. record: of the plan."""
    looks = planned_looks(plan, most_seeds)
    return PlannedLooks(
        question=record.asks,
        looks=looks,
        seeds=first_seeds(plan.sweep.seed_list, looks[-1]),
        evaluation=record.evaluation,
        looks_before=len(record.looks_taken),
    )


def register_design(record: SweepRecord, design: PlannedLooks | None) -> SweepRecord:
    """Write the design of a question none of whose cells has run, replacing any earlier one.

    None: no looks before the last cell.
    """
    others = [other for other in record.designs if other.question != record.asks]
    designed = record.model_copy(update={"designs": [*others, *([] if design is None else [design])]})
    designed.write()
    return designed


def planned_looks(plan: Plan, most_seeds: int | None) -> list[int]:
    """Return the number of seeds at each look: every quarter of the largest number, and that number itself.

    No look is below the number that a sign test needs. The largest number is by default twice the seeds of the sweep
    file, but at least `FEWEST_MOST_SEEDS`.
    """
    most = most_seeds or max(FEWEST_MOST_SEEDS, 2 * len(plan.sweep.seed_list))
    # Looks must be fixed before any data is seen, so they depend on nothing but the plan.
    quarters = [round(most * quarter / 4) for quarter in (1, 2, 3)]
    return [n for n in quarters if n >= RECOMMENDED_SEEDS] + [most]


def results_in_report(arms: Mapping[str, RunSpec], home: Path) -> dict[str, dict[str, Path]]:
    """Map each stage whose results the report shows to the paths of these results, by the arm that needs one."""
    return {
        stage.name: {
            arm: result_path(stage, spec, home)
            for arm, spec in arms.items()
            if spec.checkpoint_folder is None and stage.needed(spec)
        }
        for stage in STAGES.all().values()
        if stage.in_report
    }
