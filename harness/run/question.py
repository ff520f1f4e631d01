"""The question of a run, written beside its records: sweep.json, and all that is needed to ask it again from there.

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
from harness.records.looks import Design, Evaluation, first_seeds
from harness.records.study import STUDY
from harness.records.sweep import Asked as AskedRecord
from harness.records.sweep import (
    CellEntry,
    Gate,
    MetricFacts,
    Plugin,
    Screened,
    Source,
)
from harness.run.data_checks import contamination, data_sources
from harness.run.screening import confirmation_name
from harness.run.stages import find_stage, result_path, stages_of_cell

SWEEP_FILE = "sweep.yaml"
FEWEST_MOST_SEEDS = 12
"""With fewer seeds there is no room for a look before the last."""


def require_same_kind(folder: Path, *, is_search: bool) -> None:
    """Raise RefusedError where arms are to be run in the folder of a search, a search in that of arms, or either in
    that of imported results: the page of one would be written over that of the other."""
    if not folder.is_dir():
        return
    holds_search = (folder / STUDY).exists()
    try:
        known = read_sweep(folder)
    except (FileNotFoundError, DamagedRecordError):  # written anew by the run
        holds_arms = False
    else:
        holds_search = holds_search or known.is_search
        holds_arms = not known.is_search and any(cell.path.exists() for cell in known.cells)
        if known.is_imported:
            raise RefusedError(
                f"{folder}: holds results that `bench import` made records of. Give the sweep another `name:`, or "
                "choose another --home."
            )
    if is_search and holds_arms:
        ours, theirs = "a search", "a sweep of arms"
    elif not is_search and holds_search:
        ours, theirs = "a sweep of arms", "a search"
    else:
        return
    raise RefusedError(
        f"{folder}: holds the records of {theirs}, and {folder.name} is {ours} now, whose page would be written over "
        "the other's. Give it another `name:`, or choose another --home."
    )


def make_cells(plan: Plan, cells: Sequence[PlannedCell], home: Path) -> None:
    """The folder, spec and pending status of cells that are to be run. Raises RefusedError as `write_question`."""
    with _writable(plan.folder(home)):
        for cell, record in zip(cells, records_of(cells, plan.folder(home) / "cells"), strict=True):
            folder = record.evaluation_folder  # a trained cell keeps the spec and the code that it was trained with
            if record.state in ("running", "done", "damaged"):  # another `bench run` may have been quicker
                continue
            # A folder or file that stands in the place of another is for the cell's own job to name.
            with suppress(LeaseTakenError, FileExistsError, IsADirectoryError, NotADirectoryError):
                if not folder.exists():
                    write_folder(folder, partial(_fill_cell, cell.spec))
                    continue
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
    """Write sweep.json and the folder `question`; returns what the first holds. Raises RefusedError where they cannot
    be written. records: of the plan's cells, if they were just read."""
    folder = plan.folder(home)
    _remember_code(plan)
    with _writable(folder):
        (home / "cache").mkdir(exist_ok=True)
        _keep_files(plan.request, plan.arms.values(), folder / KEPT)
        question = _question(plan, home, command, plan.records(home) if records is None else records)
        question.write()
    return question


def _remember_code(plan: Plan) -> None:
    """Note all code that this question runs as code that this user has run. Raise RefusedError if the question is that
    of a run's records, whose code this user has never run."""
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
    """The folder of a sweep, which is made, while no other process writes the question there."""
    try:
        with hold_in_turn(folder):
            yield
    except OSError as error:
        if is_disk_full(error):
            raise
        raise RefusedError(
            f"{error.filename or folder}: cannot be written ({os.strerror(error.errno or 0)}). Make it writable, or "
            "choose another place with --home DIR or BENCH_HOME."
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
    for path in [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) not in wanted]:
        remove(path)


def _sweep_file(request: SweepRequest) -> bytes:
    """The file as its author wrote it, unless it says something else: a sweep that confirms a search has none."""
    try:
        if SweepFile.model_validate(load_yaml(request.path)) == request.sweep:
            return request.path.read_bytes()
    except (RefusedError, ValidationError):  # edited since
        pass
    return _as_yaml(request.sweep.model_dump(mode="json", exclude_unset=True, by_alias=True))


def _profile(path: Path) -> bytes:
    """The file as its author wrote it, unless it extends another one, which may change."""
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
        # Without verdicts of an earlier run, whose best arms may have been others.
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
        data=[Source(**row) for row in data_sources(plan, home / "cache")],
        base_scores=next(iter(base_scores.values()), []) if start_alike else [],
        base_scores_by_arm={} if start_alike else base_scores,
        best_of_n={arm: read_json(path) for arm, path in best_of_n_paths(plan.arms, home).items() if path.exists()},
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
        evaluation=_evaluation(plan),
        looks=[] if earlier is None else earlier.looks,
        designs=[] if earlier is None else earlier.designs,
        tuning=tuning_record(request),
    )


def _earlier(folder: Path) -> SweepRecord | None:
    """What was asked here last; None if nothing was, or nothing that this version can read."""
    try:
        return read_sweep(folder)
    except (FileNotFoundError, DamagedRecordError):
        return None


def _asks(plan: Plan) -> str:
    """Names what looks are planned for: arms as they train and as they are evaluated, baseline and metric. Seeds,
    samples and problems are left out: with more of them, answering it again is a further look. So is the margin, which
    moves no interval."""
    return digest({"arms": _conditions(plan), "baseline": plan.baseline, "metric": plan.metric})


def _contrasts(plan: Plan) -> list[str]:
    """Names what looks are counted for: each arm and the baseline, by the compared metric of the compared task. Other
    arms and tasks are left out: with fewer or more of them, the same numbers are looked at again."""
    arms = _conditions(plan, tasks=(plan.metric_task_as_given,))
    return [
        digest({"arms": sorted([of_arm, arms[plan.baseline]]), "task": plan.metric_task, "metric": plan.metric_name})
        for arm, of_arm in arms.items()
        if arm != plan.baseline
    ]


def _conditions(plan: Plan, **evaluated: object) -> dict[str, str]:
    """By arm a hash of how it trains and is evaluated, whatever the number of seeds, samples and problems."""
    one_sample = {"samples": 1, "k": (1,), "problems": None, "every": 0, "curve_samples": 1, **evaluated}
    return {
        arm: semantic_hash(spec.model_copy(update={"seed": 0, "eval": spec.eval.model_copy(update=one_sample)}))
        for arm, spec in plan.arms.items()
    }


def _evaluation(plan: Plan) -> Evaluation:
    return Evaluation(samples=plan.first_spec.eval.samples, problems=plan.first_spec.eval.problems)


def write_design(plan: Plan, most_seeds: int | None, home: Path, command: str) -> list[int]:
    """The numbers of seeds at which a question is looked at, fixed before its first cell is made or as they were fixed
    then, as `planned_design`.

    Raises RefusedError where other looks were fixed and as `require_looks`, GateError as `Plan.require_answerable`.
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
        write_question(plan, home, command)  # raises where it cannot be written
        record.model_copy(update={"designs": [*record.designs, design]}).write()
        return design.looks
    if most_seeds not in (None, known.looks[-1]):
        asked = f"--most-seeds is {most_seeds}"
    elif known.evaluation != record.evaluation:
        asked = "eval.samples or eval.problems have changed"
    else:
        return known.looks
    raise RefusedError(
        f"{asked}, but the looks of this question are fixed already, at {', '.join(map(str, known.looks))} seeds: if "
        "they change after data were seen, their level no longer holds. The same command without the change continues "
        "them. Or run without --until: what you add is then a further look, and its interval is wider."
    )


def require_looks(plan: Plan) -> None:
    """RefusedError for a plan to which further seeds bring no verdict: a screening, and one over a checkpoint."""
    name = plan.sweep.name
    if plan.sweep.screening is not None:
        raise RefusedError(
            f"{name} is a screening: it ranks arms and gives no verdict to wait for. Leave --until out; then `bench "
            f"run {confirmation_name(name)} --until verdict` adds seeds to its best arms."
        )
    if plan.request.checkpoint is not None:
        raise RefusedError(
            f"--until verdict adds training seeds, and {name} evaluates one checkpoint, over whose problems it is "
            "judged. Leave it out; more --eval-samples or problems narrow the interval."
        )


def planned_design(plan: Plan, record: SweepRecord, most_seeds: int | None) -> Design:
    """The looks at a question as `planned_looks` has them. record: of the plan."""
    looks = planned_looks(plan, most_seeds)
    return Design(
        question=record.asks,
        looks=looks,
        seeds=first_seeds(plan.sweep.seed_list, looks[-1]),
        evaluation=record.evaluation,
        looks_before=len(record.looks_taken),
    )


def register_design(record: SweepRecord, design: Design | None) -> SweepRecord:
    """Write the design of a question none of whose cells has run, in place of any that it had. None: no looks before
    the last cell."""
    others = [other for other in record.designs if other.question != record.asks]
    designed = record.model_copy(update={"designs": [*others, *([] if design is None else [design])]})
    designed.write()
    return designed


def planned_looks(plan: Plan, most_seeds: int | None) -> list[int]:
    """The seeds at each look: every quarter of the most, but none below the number that a test by signs needs. The most
    are twice the seeds of the sweep file, or `FEWEST_MOST_SEEDS`, if they are not given."""
    most = most_seeds or max(FEWEST_MOST_SEEDS, 2 * len(plan.sweep.seed_list))
    quarters = [round(most * quarter / 4) for quarter in (1, 2, 3)]
    return [n for n in quarters if n >= RECOMMENDED_SEEDS] + [most]


def best_of_n_paths(arms: Mapping[str, RunSpec], home: Path) -> dict[str, Path]:
    """For each arm with a reward model, the path of the best-of-n result of that model."""
    stage = find_stage("best_of_n")
    return {
        arm: result_path(stage, spec, home)
        for arm, spec in arms.items()
        if any(one.name == "reward_model" for one in stages_of_cell(spec))
    }
