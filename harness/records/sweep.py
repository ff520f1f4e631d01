"""The folder of one sweep or search: the question as last asked, and its cells. What reports and the mirror read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import ConfigDict, Field, ValidationError, model_validator

from harness.records.cell import EVALUATIONS, CellRecord, is_cell_directory_name
from harness.records.counted import stand
from harness.records.files import DamagedRecordError, read_json, require_inside, write_json
from harness.records.looks import Evaluation, Look, Part, PlainName, PlannedLooks, looks_at
from harness.records.rows import EvaluationRow
from harness.records.schema import SCHEMA, require_schema
from harness.records.scores import Matching, require_bins

ENDED = frozenset({"done", "failed", "invalid"})
"""The states of a cell whose run is over."""

_SHOWN_FAULTS = 3
Read = TypeVar("Read")


class CellEntry(Part):
    """A cell of the question. evaluation: as in `CellRecord`. origin: where its records come from, unless `bench run`
    trained it in this home."""

    arm: str
    seed: int
    hash: str
    dir: PlainName
    evaluation: PlainName | None = None
    origin: dict[str, object] | None = None


class Gate(Part):
    """Whether arms differ in declared knobs only, and the knobs in which they differ. ok: None where nobody knows,
    since runs were imported without their settings."""

    ok: bool | None
    differs: list[str]


class Asked(Part):
    """How the question was asked: the files, which lie in the folder `question` beside sweep.json, and the options.

    folder: where the sweep file lay. settings, seeds, arms: of --set, --seeds, --arms. on_gpu: what cells that leave
    their device to the machine run on.
    """

    file: PlainName
    profile: str
    folder: str
    settings: list[str] = []
    seeds: int | None = None
    arms: list[str] = []
    on_gpu: bool | None = None


class Plugin(Part):
    """A plug-in that was in use. digest: of its closure, whose files lie in the folder `question/code`."""

    name: str
    digest: str
    files: list[str]


class MetricFacts(Part):
    """What a reader must know of a metric; see `evals.metrics.Metric`."""

    unit: str
    better: Literal["more", "less"] | None
    compares_arms: bool


class Source(Part):
    """Where the rows of a split came from. More depends on the origin."""

    model_config = ConfigDict(extra="allow")

    task: str
    split: str
    origin: str
    digest: str
    rows: int | None = None


class BaseScore(Part):
    """The evaluation of the model before training on one task. More is in scores.jsonl's form."""

    model_config = ConfigDict(extra="allow")

    task: str
    metrics: dict[str, float | None]


class TunedArm(Part):
    """What the search of one arm found.

    digest: of what was searched. trial: the number of the best; values: its knobs. search_pp, default_pp: the score in
    the search, in percent, of the best and of the arm untuned (None if that was no trial). complete: how many trials
    have a score. generated_tokens: in training, over all trials. at_end: its knobs that are at the end of what was
    tried. short_pp, short_sd_pp: how far the best may lie above the setting found, see `harness.search.shortfall`.
    """

    digest: str
    trial: int
    values: dict[str, Any]
    search_pp: float
    default_pp: float | None
    complete: int
    generated_tokens: int
    at_end: list[str]
    short_pp: float
    short_sd_pp: float


class Tuning(Part):
    """The search that came before the comparison. ranges: by knob, as the sweep file states it. trials: of each arm.
    seeds: of each trial. searches: by arm, the name of the folder that holds its trials. arms: what was found, for
    those whose search has ended."""

    knobs: list[str]
    ranges: dict[str, dict[str, object]] = {}
    trials: int
    seeds: list[int]
    searches: dict[str, PlainName]
    arms: dict[str, TunedArm]


class Screened(Part):
    """A screening, which ranks its arms: the `best` are confirmed on so many fresh `seeds`.

    confirmed_in: the sweep that did it, None before that. contrasts: those of its report.json.
    """

    best: int
    seeds: int
    confirmed_in: PlainName | None = None
    contrasts: list[dict[str, Any]] = []


class SweepRecord(Part):
    """sweep.json, and the cells beside it.

    kind: whether its arms were stated, or are the trials of a search. checkpoint: the model that all cells evaluate as
    it is, as the sweep file names it; None where they train. arms: in the order of the sweep file. metric: the
    compared one, e.g. `eval.final.arithmetic.pass@1`. ablate: the knobs under test, as dotted prefixes; in a search
    those that it varies. varied: by arm, the knobs in which arms differ. grid: in a factorial, by arm its value of
    every factor, else empty. leave_one_out: whether each other arm puts one knob of the baseline's recipe back to its
    ordinary value. new_problems: whether intervals over new problems are asked for too. contamination: by
    task, held-out problems that occur in training prompts. best_of_n: by arm, what choosing by its reward model gives.
    asks: names the question, whatever its seeds, samples and problems. contrasts: names each pair of arms that is
    compared, by the compared task and metric; questions that share one share its looks. held_out: by task, how many
    problems it has for evaluation, as far as the plan knew. looks, designs: of this question and of those that were
    asked here before, in the order of time.
    tuning: None unless each arm was tuned first. matching: by task, how problems of imported cells were matched.
    """

    path: Path = Field(exclude=True)
    kind: Literal["sweep", "search"]
    name: str
    question: str
    profile: str
    command: str
    checkpoint: str | None = None
    arms: list[str]
    grid: dict[str, dict[str, object]] = {}
    leave_one_out: bool = False
    baseline: str
    metric: str
    metrics: dict[str, MetricFacts]
    margin_pp: float
    alpha: Annotated[float, Field(gt=0, lt=1)]
    new_problems: bool = False
    screening: Screened | None = None
    seeds: list[int]
    ablate: list[str]
    co_changes: dict[str, str] = {}
    varied: dict[str, dict[str, object]]
    cell_entries: list[CellEntry] = Field(alias="cells")
    tasks: list[str]
    k: list[int]
    gate: Gate
    warnings: list[str]
    budget_tokens: int | None
    contamination: list[dict[str, object]] = []
    data: list[Source] = []
    base_scores: list[dict[str, Any]] = []
    base_scores_by_arm: dict[str, list[dict[str, object]]] = {}
    best_of_n: dict[str, list[dict[str, int | float]]] = {}
    asked: Asked | None = None
    plugins: list[Plugin] = []
    asks: str
    contrasts: list[str]
    evaluation: Evaluation | None
    held_out: dict[str, int]
    looks: list[Look] = []
    matching: dict[str, Matching] = {}
    designs: list[PlannedLooks] = []
    tuning: Tuning | None = None

    @model_validator(mode="after")
    def _arms_are_known(self) -> SweepRecord:
        named = {self.baseline, *(cell.arm for cell in self.cell_entries)}
        if strangers := sorted(named - {*self.arms}):
            raise ValueError(
                f"{', '.join(strangers)} is its baseline or the arm of a cell, but not among its arms "
                f"{', '.join(self.arms)}"
            )
        for row in (*self.base_scores, *(row for rows in self.base_scores_by_arm.values() for row in rows)):
            BaseScore.model_validate(row)
            require_bins(f"{self.path / 'sweep.json'}, {row['task']}", row)
        return self

    def base_scores_of(self, arm: str | None = None) -> list[EvaluationRow]:
        """The evaluations of the model that an arm, or every arm, starts from; [] until they are made."""
        rows = self.base_scores if arm is None else self.base_scores_by_arm.get(arm, self.base_scores)
        return cast(list[EvaluationRow], rows)

    @property
    def is_search(self) -> bool:
        return self.kind == "search"

    @property
    def is_imported(self) -> bool:
        """Whether other tools made what it compares; then a cell's origin says where it was imported from."""
        return any(cell.origin is not None and "imported_from" in cell.origin for cell in self.cell_entries)

    def data_of(self, task: str) -> list[Source]:
        """Where the held-out rows of a task came from; [] if they were generated, or imported."""
        return [row for row in self.data if (row.task, row.split) == (task, "test")]

    def n_held_out(self, task: str) -> int | None:
        """How many problems a task has for evaluation; None if the records do not say."""
        rows = [source.rows for source in self.data_of(task) if source.rows is not None]
        return self.held_out.get(task, rows[-1] if rows else None)

    def compares_arms(self, metric: str) -> bool:
        """Whether arms can be compared by a metric, as `evals.metrics` knew it when the sweep ran."""
        return metric in self.metrics and self.metrics[metric].compares_arms

    @cached_property
    def cells(self) -> list[CellRecord]:
        """The cells of this question, arm by arm, whether they have started or not."""
        return [
            CellRecord(self.path / "cells" / cell.dir, cell.arm, cell.seed, cell.hash, cell.evaluation)
            for cell in self.cell_entries
        ]

    @cached_property
    def other_cells(self) -> list[CellRecord]:
        """Cells of what was asked here before: listed, never mixed in."""
        ours = {cell.dir for cell in self.cell_entries}
        folder = self.path / "cells"
        paths = sorted(path for path in folder.iterdir() if path.name not in ours) if folder.exists() else []
        return [CellRecord.at(path) for path in paths if is_cell_directory_name(path.name) and path.is_dir()]

    @property
    def is_complete(self) -> bool:
        """Whether every cell has ended, so that its verdicts are those of the whole plan."""
        return all(cell.state in ENDED for cell in self.cells)

    @property
    def design(self) -> PlannedLooks | None:
        """The looks that were fixed for this question."""
        return next((design for design in self.designs if design.question == self.asks), None)

    @property
    def look(self) -> Look:
        """The look that showing the verdicts of this plan is, or will be once all its cells have ended."""
        design = self.design
        planned = (
            design is not None
            and design.evaluation == self.evaluation
            and len(self.seeds) in design.looks
            and self.seeds == design.seeds[: len(self.seeds)]
        )
        asks, now = self.asks, self.evaluation
        return Look(question=asks, contrasts=self.contrasts, seeds=self.seeds, evaluation=now, planned=planned)

    @property
    def looks_taken(self) -> list[Look]:
        """The looks so far at what this question compares, whichever question took them."""
        return looks_at(self.looks, self.asks, self.contrasts)

    @property
    def looks_and_this(self) -> list[Look]:
        """`looks_taken`, and `look` if it is a further one."""
        return looks_at([*self.looks, self.look], self.asks, self.contrasts)

    def record_look(self, verdicts: Mapping[str, str]) -> None:
        """Write down that these verdicts, by arm, are shown, unless they are of an unfinished plan, of the same data as
        before, or of too few seeds for any test."""
        now = read_sweep(self.path)
        is_known = any(look.is_same(self.look) for look in now.looks)
        if self.is_complete and not is_known and {*verdicts.values()} - {"no_test"}:
            look = self.look.model_copy(update={"verdicts": {**verdicts}})
            now.model_copy(update={"looks": [*now.looks, look]}).write()

    def stand(self) -> str:
        """Another one after every change of what the question is, or of what its cells have recorded; looks at it
        change nothing. No rows are read."""
        asked = self.model_dump(mode="json", exclude={"looks"})
        cells = [(str(cell.path), cell.state, stand(cell.path)) for cell in self.cells]
        content = json.dumps([asked, cells, [cell.path.name for cell in self.other_cells]])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def as_it_stands(self) -> SweepRecord:
        """The same, whose cells keep the states of now, for a reader who asks for them again and again."""
        return self._with_cells([cell.as_it_stands for cell in self.cells])

    def _with_cells(self, cells: list[CellRecord]) -> SweepRecord:
        copy = self.model_copy()
        vars(copy)["cells"] = cells
        return copy

    def setting_aside(self, error: DamagedRecordError) -> SweepRecord:
        """The same, with the cell that the error names `damaged`: one bad cell hides no other. Raises the error if it
        is about something else."""
        at_fault = [cell for cell in self.cells if cell.is_named_in(error)]
        if not at_fault:
            raise error
        return self._with_cells([replace(cell, fault=str(error)) if cell in at_fault else cell for cell in self.cells])

    def cell_at(self, path: Path) -> CellRecord:
        """The cell in a folder, as the question reads it; one of another question under the evaluation that it was run
        with."""
        return next((cell for cell in self.cells if cell.path == path), CellRecord.at(path))

    def write(self) -> None:
        """Write sweep.json."""
        write_json(self.path / "sweep.json", {"schema": SCHEMA, **self.model_dump(mode="json", by_alias=True)})


def reading_around_damage(sweep: SweepRecord, read: Callable[[SweepRecord], Read]) -> Read:
    """What `read` makes of a sweep, without the cells that it finds damaged. Raises DamagedRecordError if something
    else is."""
    while True:
        try:
            return read(sweep)
        except DamagedRecordError as error:
            sweep = sweep.setting_aside(error)


def read_sweep(path: Path) -> SweepRecord:
    """Return the sweep in a folder.

    Raises FileNotFoundError if it was never run, DamagedRecordError if it cannot be read, and as `require_schema`.
    """
    file = path / "sweep.json"
    document = read_json(file)
    if not isinstance(document, dict):
        raise _damaged(file, "it holds no question")
    require_schema(file, document)
    try:
        # As JSON, in which a whole number stands for a real one.
        sweep = SweepRecord.model_validate_json(json.dumps(document | {"path": str(path)}))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'the question'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        ]
        more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise _damaged(file, "; ".join(faults[:_SHOWN_FAULTS]) + more) from None
    read = (path / "cells" / cell.dir / EVALUATIONS / (cell.evaluation or "") for cell in sweep.cell_entries)
    require_inside(path, read)
    return sweep


def _damaged(file: Path, fault: str) -> DamagedRecordError:
    return DamagedRecordError(f"{file}: is damaged: {fault}. `bench run` writes it anew.")
