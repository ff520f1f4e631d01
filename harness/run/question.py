"""The question of a run, written next to its records: sweep.json, and all files that are needed to ask it again.

<sweep>/sweep.json           the question (`harness.records.SweepRecord`)
<sweep>/question/            the sweep file, the profile, and the user's files that they name
<sweep>/question/code/       the plug-ins and reward functions with everything that they import
<sweep>/cells/<cell>/code/   the user's code that the cell's results depend on, as it was when the cell was planned
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
"""The default of the largest number of seeds is never less. With fewer, an interim look would have too few seeds."""


def require_same_kind(folder: Path, *, is_search: bool) -> None:
    """Raise RefusedError if a folder already contains records of another kind: arms, a search, or imported results.

    Otherwise the page of one question would overwrite that of the other.
    """
    if not folder.is_dir():
        return
    holds_search = (folder / STUDY).exists()
    try:
        known = read_sweep(folder)
    except (FileNotFoundError, DamagedRecordError):
        # The run will write a new sweep.json.
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
    """Write the folder, spec and pending status of the cells that are to be run.

    Raises RefusedError as `write_question`.
    """
    with _writable(plan.folder(home)):
        for cell, record in zip(cells, records_of(cells, plan.folder(home) / "cells"), strict=True):
            # For another evaluation of a trained cell, this folder differs from the cell's own. The cell keeps the spec
            # and code with which it was trained.
            folder = record.evaluation_folder
            # Another `bench run` may have been quicker.
            if record.state in ("running", "done", "damaged"):
                continue
            # If there is a file instead of a folder, or a folder instead of a file, the cell's own job reports it.
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
    """Write the files that a cell, or another evaluation of a trained cell, has before it starts."""
    write_json(folder / "spec.json", spec.model_dump(mode="json"))
    for module in user_code(spec):
        for path, content in module.laid_out():
            _keep(folder / "code" / path, content)
    write_status(folder, "pending", steps=spec.training_steps)


def write_question(plan: Plan, home: Path, command: str, records: Sequence[CellRecord] | None = None) -> SweepRecord:
    """Write sweep.json and the folder `question`. Return the content of sweep.json.

    records: the records of the plan's cells, if the caller has just read them.
    Raises RefusedError if the files cannot be written.
    """
    folder = plan.folder(home)
    # The code is checked before anything is written.
    _remember_code(plan)
    with _writable(folder):
        (home / "cache").mkdir(exist_ok=True)
        _keep_files(plan.request, plan.arms.values(), folder / KEPT)
        question = _question(plan, home, command, plan.records(home) if records is None else records)
        question.write()
    return question


def _remember_code(plan: Plan) -> None:
    """Record that this user has run the code of this question.

    Raises RefusedError if the question comes from a run's records and this user has never run its code.
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
    """Create the folder of a sweep, and keep other processes from writing the question there during the block."""
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
    """Copy the files that a later run from the records needs, unless this run itself started from the records."""
    if request.path.parent.resolve() == folder.resolve():
        return
    wanted = {Path(SWEEP_FILE): _sweep_file(request), Path(KEPT_PROFILE): _profile(request.profile_path)}
    for name in sorted({name for spec in specs for name in spec.own_files()}):
        wanted[Path(name)] = plugins.user_file(name).read_bytes()
    for module in [*plugins.in_use(), *(module for spec in specs for module in user_code(spec))]:
        wanted |= {KEPT_CODE / path: content for path, content in module.laid_out()}
    for path, content in wanted.items():
        _keep(folder / path, content)
    # Files of an earlier question must be removed, so that a run from the records does not read them.
    for path in [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) not in wanted]:
        remove(path)


def _sweep_file(request: SweepRequest) -> bytes:
    """Return the sweep file as its author wrote it, or the request as YAML if the file differs from it.

    For example, a sweep that confirms a search has no file.
    """
    try:
        if SweepFile.model_validate(load_yaml(request.path)) == request.sweep:
            return request.path.read_bytes()
    except (RefusedError, ValidationError):
        # The file has been edited since it was read for this request.
        pass
    return _as_yaml(request.sweep.model_dump(mode="json", exclude_unset=True, by_alias=True))


def _profile(path: Path) -> bytes:
    """Return the profile file as its author wrote it, or fully resolved if it extends another one, which may change."""
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
    # Arms may start from different weights. The report then shows a base score for each arm.
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
        # The verdicts of an earlier run are dropped, because its best arms may have been others.
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
    """Return the question that was last written to this folder, or None if there is none that this version can read."""
    try:
        return read_sweep(folder)
    except (FileNotFoundError, DamagedRecordError):
        return None


def _asks(plan: Plan) -> str:
    """Return the id of the question that looks are planned for: arms with training and evaluation, baseline and metric.

    Seeds, samples and problems are left out, because asking again with more of them is a further look. The margin is
    left out too, because it changes no interval.
    """
    return digest({"arms": _conditions(plan), "baseline": plan.baseline, "metric": plan.metric})


def _contrasts(plan: Plan) -> list[str]:
    """Return the ids by which looks are counted: each arm and the baseline, with the compared task and metric.

    Other arms and tasks are left out. With more or fewer of them, a look is still at the same numbers.
    """
    arms = _conditions(plan, tasks=(plan.metric_task_as_given,))
    return [
        digest({"arms": sorted([of_arm, arms[plan.baseline]]), "task": plan.metric_task, "metric": plan.metric_name})
        for arm, of_arm in arms.items()
        if arm != plan.baseline
    ]


def _conditions(plan: Plan, **evaluated: object) -> dict[str, str]:
    """Map each arm to a hash of its training and evaluation that ignores the number of seeds, samples and problems."""
    # These settings change how precisely a question is answered, but not the question.
    one_sample = {"samples": 1, "k": (1,), "problems": None, "every": 0, "curve_samples": 1, **evaluated}
    return {
        arm: semantic_hash(spec.model_copy(update={"seed": 0, "eval": spec.eval.model_copy(update=one_sample)}))
        for arm, spec in plan.arms.items()
    }


def write_design(plan: Plan, most_seeds: int | None, home: Path, command: str) -> list[int]:
    """Return the numbers of seeds at which looks are planned, and record them.

    They are computed as in `planned_design`, before the first cell exists. If looks were planned earlier, those stay.
    Raises RefusedError if a different plan was recorded, and as `require_looks`. Raises GateError as
    `Plan.require_answerable`.
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
        # This raises if the folder cannot be written, before the design is recorded.
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
    """Raise RefusedError for a plan that gets no verdict from further seeds.

    Such plans are a screening, and an evaluation of one checkpoint.
    """
    name = plan.sweep.name
    if plan.sweep.screening is not None:
        raise RefusedError("run.screening_has_no_verdict", name=name, confirmation_name=confirmation_name(name))
    if plan.request.checkpoint is not None:
        raise RefusedError("run.one_checkpoint_has_no_seeds", name=name)


def planned_design(plan: Plan, record: SweepRecord, most_seeds: int | None) -> PlannedLooks:
    """Return the looks at a question, planned as in `planned_looks`. record: the sweep record of the plan."""
    looks = planned_looks(plan, most_seeds)
    return PlannedLooks(
        question=record.asks,
        looks=looks,
        seeds=first_seeds(plan.sweep.seed_list, looks[-1]),
        evaluation=record.evaluation,
        looks_before=len(record.looks_taken),
    )


def register_design(record: SweepRecord, design: PlannedLooks | None) -> SweepRecord:
    """Write the design of a question that has no run cell yet, replacing any earlier design.

    design: None if the only look is after the last cell.
    """
    others = [other for other in record.designs if other.question != record.asks]
    designed = record.model_copy(update={"designs": [*others, *([] if design is None else [design])]})
    designed.write()
    return designed


def planned_looks(plan: Plan, most_seeds: int | None) -> list[int]:
    """Return the number of seeds at each look: each quarter of the largest number, and that number itself.

    Looks with fewer seeds than a sign test needs are left out. By default, the largest number is twice the number of
    seeds in the sweep file, but at least `FEWEST_MOST_SEEDS`.
    """
    most = most_seeds or max(FEWEST_MOST_SEEDS, 2 * len(plan.sweep.seed_list))
    # Looks must be fixed before any data are seen, so they depend only on the plan.
    quarters = [round(most * quarter / 4) for quarter in (1, 2, 3)]
    return [n for n in quarters if n >= RECOMMENDED_SEEDS] + [most]


def results_in_report(arms: Mapping[str, RunSpec], home: Path) -> dict[str, dict[str, Path]]:
    """Map each stage that the report shows to the paths of its results, by the arm that needs them."""
    return {
        stage.name: {
            arm: result_path(stage, spec, home)
            for arm, spec in arms.items()
            if spec.checkpoint_folder is None and stage.needed(spec)
        }
        for stage in STAGES.all().values()
        if stage.in_report
    }
