"""Writes the records of imported runs: those of `bench run`, without what is unknown.

A cell has no digest of weights and no number of generated tokens. Its provenance is the file that it comes from. Its
spec.json holds the given settings under `imported`. Its samples have the columns that their source knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from evals.metrics import metric_facts
from harness.config.hashing import digest
from harness.errors import RefusedError, UnknownNameError, few, nearest
from harness.records import CellRecord, SweepRecord, cell_directory_name, read_sweep
from harness.records.cell import STARTS_FILE
from harness.records.files import append_jsonl, file_name, write_folder, write_json
from harness.records.looks import Evaluation
from harness.records.scores import Matching
from harness.records.sweep import CellEntry, Gate, MetricFacts
from harness.shelves.imports.base import ImportedRun
from harness.shelves.imports.cells import (
    Cells,
    Evaluated,
    common_ks,
    compared_metric,
    evaluations,
    final,
    gathered,
    warnings,
)
from harness.shelves.imports.gate import Checked, check_configs, read_configs
from harness.shelves.imports.sources import Pattern, read_sources, settle_names

QUESTION = "Do these arms, made elsewhere, differ?"
PROFILE = "imported"
ITS_OWN_MODEL = "its own model"
"""The checkpoint of arms without training seeds: each arm is one model, and problems are the replicates."""


@dataclass(frozen=True)
class Request:
    """The arguments of one import."""

    name: str
    """The name of the records."""
    sources: Sequence[str]
    """Files, folders, addresses and patterns."""
    command: str = ""
    """The command, for captions."""
    format: str | None = None
    """None to detect it."""
    runs: str | None = None
    """The pattern of runs' names."""
    arm: str | None = None
    """The arm of runs that do not say theirs, like the seed."""
    seed: int | None = None
    configs: str | None = None
    """The pattern of files with settings."""
    question: str = QUESTION
    baseline: str | None = None
    """None for the first arm."""
    metric: str | None = None
    """None for the first accuracy."""
    margin_pp: float = 1.0
    ablate: Sequence[str] = ()
    """As in a sweep file, like `co_changes`."""
    co_changes: Mapping[str, str] = field(default_factory=dict)


def import_sweep(folder: Path, request: Request) -> SweepRecord:
    """Read the sources and write their records.

    Raises RefusedError for sources that are partial, contradictory or not what their tools write, and as
    `write_imported`. Raises GateError as `check_configs`.
    """
    runs, formats = read_sources(request.sources, request.format)
    settle_names(runs, None if request.runs is None else Pattern(request.runs), request.arm, request.seed)
    cells, matching = gathered(runs)
    # Settings from files come before the gate, which compares them.
    if request.configs is not None:
        read_configs(cells, request.configs)
    bookkeeping = frozenset[str]().union(*(one.bookkeeping for one in formats))
    checked = check_configs(cells, request.ablate, request.co_changes, bookkeeping)
    return write_imported(folder, cells, request, checked, matching)


def write_imported(
    folder: Path, cells: Cells, request: Request, checked: Checked, matching: Mapping[str, Matching]
) -> SweepRecord:
    """Write the sweep over an earlier import, and keep that one's looks.

    Raises RefusedError if something other than an import has the folder's name, for an unknown baseline, and as
    `compared_metric`.
    """
    earlier = _earlier(folder)
    arms = {arm: file_name(arm) for arm, _ in cells}
    if len({*arms.values()}) < len(arms):
        raise RefusedError("shelves.imports.arm_names_collide", arms=few(arms))
    baseline = next(iter(arms)) if request.baseline is None else request.baseline
    if baseline not in arms:
        raise RefusedError(
            "shelves.imports.unknown_baseline", baseline=baseline, nearest=nearest(baseline, arms), arms=few(arms)
        )
    ks = common_ks(cells)
    metric = compared_metric(cells, request.metric, ks)
    tasks = [*final(next(iter(cells.values())))]
    seeds = sorted({seed or 0 for _, seed in cells})
    # Without any seed, the replicates are problems, which needs verdicts on samples in every final evaluation.
    over_problems = all(seed is None for _, seed in cells) and all(
        one.samples for run in cells.values() for one in final(run).values()
    )
    entries = []
    for (arm, seed), run in cells.items():
        # The hash covers everything that was read, so an edited source gives another cell.
        content = digest({"arm": arms[arm], "seed": seed, **asdict(run)})
        entries.append(
            CellEntry(
                arm=arms[arm],
                seed=seed or 0,
                hash=content,
                dir=cell_directory_name(arms[arm], seed or 0, content),
                origin={"imported_from": run.source},
            )
        )
    n_samples = max((one.n for run in cells.values() for one in final(run).values()), default=0)
    others = [arm for arm in arms.values() if arm != arms[baseline]]
    sweep = SweepRecord(
        path=folder,
        kind="sweep",
        name=request.name,
        question=request.question,
        profile=PROFILE,
        command=request.command,
        checkpoint=ITS_OWN_MODEL if over_problems else None,
        arms=[*arms.values()],
        baseline=arms[baseline],
        metric=metric,
        metrics=_facts(cells, ks),
        margin_pp=request.margin_pp,
        alpha=0.05,
        seeds=seeds,
        ablate=[*request.ablate],
        co_changes=dict(request.co_changes),
        varied={arms[arm]: checked.varied.get(arm, {}) for arm in arms},
        cell_entries=entries,
        tasks=tasks,
        k=ks,
        gate=Gate(ok=checked.ok, differs=checked.differs),
        warnings=[
            *([_unknown_settings(checked.without, len(cells))] if checked.without else []),
            *warnings(cells),
        ],
        budget_tokens=None,
        asks=digest([request.name, [*arms.values()], baseline, metric]),
        contrasts=[digest([*sorted([arm, arms[baseline]]), metric]) for arm in others],
        evaluation=Evaluation(samples=n_samples) if n_samples else None,
        held_out={task: len(one.problems) for task, one in final(next(iter(cells.values()))).items() if one.samples},
        looks=[] if earlier is None else earlier.looks,
        matching=dict(matching) if len(cells) > 1 else {},
    )

    def write(aside: Path) -> None:
        for entry, run in zip(entries, cells.values(), strict=True):
            path = aside / "cells" / entry.dir
            path.mkdir(parents=True)
            cell = CellRecord(path, entry.arm, entry.seed, entry.hash)
            settings = {"config": run.config, "passed_over": sorted(checked.passed_over)}
            write_json(
                path / "spec.json", {"imported": settings} | ({"checkpoint": entry.arm} if over_problems else {})
            )
            _write_cell(cell, run, ks)
        sweep.model_copy(update={"path": aside}).write()

    folder.parent.mkdir(parents=True, exist_ok=True)
    # The folder is written under another name first, so an interrupted import leaves the earlier one whole.
    write_folder(folder, write, replaces=True)
    return read_sweep(folder)


def _unknown_settings(without: Sequence[str], n_cells: int) -> str:
    of_which = "any run" if len(without) == n_cells else few(without)
    return (
        f"no settings are known of {of_which}: nothing shows that arms differ only in what they should differ in. Give "
        "them in columns config.<knob> or with --configs"
    )


def _earlier(folder: Path) -> SweepRecord | None:
    """Read the earlier import in the folder, if any. Raises RefusedError for anything else in its place."""
    if not folder.exists():
        return None
    if (folder / "sweep.json").is_file():
        known = read_sweep(folder)
        if known.is_imported:
            return known
    raise RefusedError("shelves.imports.folder_taken", folder=folder)


def _facts(cells: Cells, ks: Sequence[int]) -> dict[str, MetricFacts]:
    """Return the facts about every metric. A foreign one compares arms if all its values are fractions."""
    values: dict[str, list[float]] = {}
    for run in cells.values():
        for one in evaluations(run):
            for name, value in one.metrics(ks if one.n >= max(ks, default=0) else ()).items():
                values.setdefault(name, []).extend([] if value is None else [value])
    return {name: _facts_of(name, some) for name, some in values.items()}


def _facts_of(name: str, values: Sequence[float]) -> MetricFacts:
    try:
        return MetricFacts(**metric_facts(name))
    except UnknownNameError:
        is_fraction = all(0 <= value <= 1 for value in values)
        return MetricFacts(
            unit="fraction" if is_fraction else "as given",
            better="more" if is_fraction else None,
            compares_arms=is_fraction,
        )


def _write_cell(cell: CellRecord, run: ImportedRun, ks: Sequence[int]) -> None:
    """Write the records of a cell, except spec.json."""
    append_jsonl(cell.path / STARTS_FILE, [{"epoch": 0, "from_step": 0, "imported_from": run.source}])
    # An evaluation without a step is that of the end, so it counts as step 0 here.
    last = max(run.steps, default=max((one.step or 0 for one in evaluations(run)), default=0))
    if run.steps:
        append_jsonl(cell.path / "steps.jsonl", ({"step": step, **run.steps[step]} for step in sorted(run.steps)))
    found = evaluations(run)
    append_jsonl(cell.scores, (_score_row(one, last, ks) for one in found))
    if run.samples:
        _write_samples(cell, found, last)
    cell.write_status(
        "done", flags=[], step=last, steps=last, logged_steps=len(run.steps), generated_tokens=None,
        records=cell.count_finished(),
    )  # fmt: skip


def _score_row(one: Evaluated, last: int, ks: Sequence[int]) -> dict[str, object]:
    of_samples = {"n_problems": len(one.problems), "n_samples": one.n} if one.samples else {}
    return {
        "step": last if one.step is None else one.step,
        "final": one.step is None,
        "task": one.task,
        "generated_tokens": None,
        "metrics": one.metrics([k for k in ks if k <= one.n]),
        **of_samples,
    }


def _write_samples(cell: CellRecord, found: Sequence[Evaluated], last: int) -> None:
    """Write evals.parquet with the columns known for every sample, and problems.jsonl if prompts are known."""
    import pyarrow
    import pyarrow.parquet

    samples = [(one, sample) for one in found for sample in one.samples]
    columns: dict[str, list[object]] = {
        "step": [last if one.step is None else one.step for one, _ in samples],
        "final": [one.step is None for one, _ in samples],
        **{
            name: [getattr(sample, name) for _, sample in samples]
            for name in ("task", "problem_id", "sample", "text", "n_tokens", "truncated", "correct")
        },
    }
    known = {name: values for name, values in columns.items() if None not in values}
    if any(sample.extracted is not None for _, sample in samples):
        known["extracted"] = [sample.extracted for _, sample in samples]
    pyarrow.parquet.write_table(pyarrow.table(known), cell.evals, compression="zstd", write_page_checksum=True)
    asked = {(s.task, s.problem_id): s for _, s in samples if s.prompt is not None or s.content is not None}
    if asked:
        append_jsonl(
            cell.path / "problems.jsonl",
            (
                {"task": task, "split": "test", "problem_id": problem}
                | {"prompt": s.prompt or "", "answer": s.answer or "", "content": s.content}
                for (task, problem), s in asked.items()
            ),
        )
