"""The folder of one sweep or search: the question as last asked, and its cells. Reports and the mirror read it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeVar, cast

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
    """A cell of the question."""

    arm: str
    seed: int
    hash: str
    dir: PlainName
    evaluation: PlainName | None = None
    """As in `CellRecord`."""
    origin: dict[str, object] | None = None
    """The origin of its records, unless `bench run` trained it in this home."""


class Gate(Part):
    """Whether arms differ in declared knobs only, and the knobs in which they differ."""

    ok: bool | None
    """None if unknown, because runs were imported without their settings."""
    differs: list[str]


class Asked(Part):
    """How the question was asked: the options, and the files, which lie in the folder `question` next to sweep.json."""

    file: PlainName
    profile: str
    folder: str
    """The folder of the sweep file."""
    settings: list[str] = []
    """The values of --set; `seeds` and `arms` are those of --seeds and --arms."""
    seeds: int | None = None
    arms: list[str] = []
    on_gpu: bool | None = None
    """Whether cells without a device of their own run on a GPU."""


class Plugin(Part):
    """A plug-in that was in use."""

    name: str
    digest: str
    """The digest of its closure, whose files lie in the folder `question/code`."""
    files: list[str]


class MetricFacts(Part):
    """The properties of a metric that a reader needs; see `evals.metrics.Metric`."""

    unit: str
    better: Literal["more", "less"] | None
    compares_arms: bool


class Source(Part):
    """The origin of the rows of a split; further fields depend on the origin."""

    model_config = ConfigDict(extra="allow")

    task: str
    split: str
    origin: str
    digest: str
    rows: int | None = None


class BaseScore(Part):
    """The evaluation of the model before training on one task; further fields are those of a row of scores.jsonl."""

    model_config = ConfigDict(extra="allow")

    task: str
    metrics: dict[str, float | None]


class TunedArm(Part):
    """The result of an arm's search."""

    digest: str
    """The digest of what was searched."""
    trial: int
    """The number of the best trial."""
    values: dict[str, object]
    """The knobs of the best trial."""
    search_pp: float
    """The score of the best trial in the search, in percent."""
    default_pp: float | None
    """The score of the untuned arm in the search, in percent; None if it was no trial."""
    complete: int
    """The number of trials with a score."""
    generated_tokens: int
    """The completion tokens sampled in training, over all trials."""
    at_end: list[str]
    """The knobs whose best value is at the end of the values that were tried."""
    short_pp: float
    """How far the best setting may lie above the one found, with its sd in `short_sd_pp`; see
    `harness.search.shortfall`.
    """
    short_sd_pp: float


class Tuning(Part):
    """The search that preceded the comparison."""

    knobs: list[str]
    ranges: dict[str, dict[str, object]] = {}
    """By knob, as the sweep file states it."""
    trials: int
    """The trials of each arm."""
    seeds: list[int]
    """The seeds of each trial."""
    searches: dict[str, PlainName]
    """Maps each arm to the name of the folder with its trials."""
    arms: dict[str, TunedArm]
    """The result of each arm whose search has ended."""


class Screened(Part):
    """A screening, which ranks its arms: the `best` are confirmed on this many fresh `seeds`."""

    best: int
    seeds: int
    confirmed_in: PlainName | None = None
    """The sweep that confirmed them; None before that."""
    contrasts: list[dict[str, object]] = []
    """Those of the confirming sweep's report.json."""


class SweepRecord(Part):
    """sweep.json, and the cells next to it."""

    path: Path = Field(exclude=True)
    kind: Literal["sweep", "search"]
    """A search's arms are its trials; a sweep's are stated."""
    name: str
    question: str
    profile: str
    command: str
    checkpoint: str | None = None
    """The model that all cells evaluate as it is, as the sweep file names it; None if they train."""
    arms: list[str]
    """In the order of the sweep file."""
    grid: dict[str, dict[str, object]] = {}
    """The value of every factor by arm, in a factorial; else empty."""
    leave_one_out: bool = False
    """Whether each other arm puts one knob of the baseline's recipe back to its ordinary value."""
    baseline: str
    metric: str
    """The compared metric, such as `eval.final.arithmetic.pass@1`."""
    metrics: dict[str, MetricFacts]
    margin_pp: float
    alpha: Annotated[float, Field(gt=0, lt=1)]
    new_problems: bool = False
    """Whether intervals over new problems are asked for too."""
    screening: Screened | None = None
    seeds: list[int]
    ablate: list[str]
    """The knobs under test, as dotted prefixes; in a search those that it varies."""
    co_changes: dict[str, str] = {}
    varied: dict[str, dict[str, object]]
    """The knobs in which arms differ, by arm."""
    cell_entries: list[CellEntry] = Field(alias="cells")
    tasks: list[str]
    k: list[int]
    gate: Gate
    warnings: list[str]
    budget_tokens: int | None
    contamination: list[dict[str, object]] = []
    """Held-out problems that occur in training prompts, by task."""
    data: list[Source] = []
    base_scores: list[dict[str, object]] = []
    base_scores_by_arm: dict[str, list[dict[str, object]]] = {}
    best_of_n: dict[str, list[dict[str, int | float]]] = {}
    """The results of choosing the best of n samples by the arm's reward model, by arm."""
    asked: Asked | None = None
    plugins: list[Plugin] = []
    asks: str
    """Names the question, whatever its seeds, samples and problems."""
    contrasts: list[str]
    """Names each compared pair of arms by the compared task and metric; questions that share one share its looks."""
    evaluation: Evaluation | None
    held_out: dict[str, int]
    """The number of problems for evaluation by task, as far as the plan knew it."""
    looks: list[Look] = []
    """Looks at this question and at earlier ones asked here, in order of time; so are `designs`."""
    matching: dict[str, Matching] = {}
    """How problems of imported cells were matched, by task."""
    designs: list[PlannedLooks] = []
    tuning: Tuning | None = None
    """None unless each arm was tuned first."""

    @model_validator(mode="after")
    def _arms_are_known(self) -> SweepRecord:
        """Raise ValueError if the baseline or a cell has an unknown arm; check the base scores too."""
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
        """Return the evaluations of the model that an arm, or every arm, starts from; [] before they are made."""
        rows = self.base_scores if arm is None else self.base_scores_by_arm.get(arm, self.base_scores)
        return cast(list[EvaluationRow], rows)

    @property
    def is_search(self) -> bool:
        return self.kind == "search"

    @property
    def is_imported(self) -> bool:
        """Whether its cells come from other tools; then each cell's origin says where it was imported from."""
        return any(cell.origin is not None and "imported_from" in cell.origin for cell in self.cell_entries)

    def data_of(self, task: str) -> list[Source]:
        """Return the origins of the held-out rows of a task; [] if they were generated or imported."""
        return [row for row in self.data if (row.task, row.split) == (task, "test")]

    def n_held_out(self, task: str) -> int | None:
        """Return the number of problems that a task has for evaluation, or None if the records do not say."""
        rows = [source.rows for source in self.data_of(task) if source.rows is not None]
        return self.held_out.get(task, rows[-1] if rows else None)

    def compares_arms(self, metric: str) -> bool:
        """Return whether arms can be compared by a metric, as `evals.metrics` stated when the sweep ran."""
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
        """The cells of earlier questions in this folder: listed, never mixed in."""
        ours = {cell.dir for cell in self.cell_entries}
        folder = self.path / "cells"
        paths = sorted(path for path in folder.iterdir() if path.name not in ours) if folder.exists() else []
        return [CellRecord.at(path) for path in paths if is_cell_directory_name(path.name) and path.is_dir()]

    @property
    def is_complete(self) -> bool:
        """Whether every cell has ended, so that the verdicts are those of the whole plan."""
        return all(cell.state in ENDED for cell in self.cells)

    @property
    def design(self) -> PlannedLooks | None:
        """The looks that were fixed for this question."""
        return next((design for design in self.designs if design.question == self.asks), None)

    @property
    def look(self) -> Look:
        """The look that is taken when the verdicts of this plan are shown, once all its cells have ended."""
        design = self.design
        # A look counts as planned only if its evaluation and its first seeds are exactly those of the design.
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
        """Record that these verdicts, by arm, are shown.

        Nothing is recorded for an unfinished plan, for data that was shown before, or if there are too few seeds for
        any test.
        """
        # Read anew: another process may have recorded a look since this record was read.
        now = read_sweep(self.path)
        is_known = any(look.is_same(self.look) for look in now.looks)
        if self.is_complete and not is_known and {*verdicts.values()} - {"no_test"}:
            look = self.look.model_copy(update={"verdicts": {**verdicts}})
            now.model_copy(update={"looks": [*now.looks, look]}).write()

    def stand(self) -> str:
        """Return a digest that changes with the question and with the records of its cells, but not with looks.

        No rows are read.
        """
        asked = self.model_dump(mode="json", exclude={"looks"})
        cells = [(str(cell.path), cell.state, stand(cell.path)) for cell in self.cells]
        content = json.dumps([asked, cells, [cell.path.name for cell in self.other_cells]])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def as_it_stands(self) -> SweepRecord:
        """The same sweep with the present states of its cells fixed, for a reader that asks for them repeatedly."""
        return self._with_cells([cell.as_it_stands for cell in self.cells])

    def _with_cells(self, cells: list[CellRecord]) -> SweepRecord:
        """Return a copy whose cells are replaced."""
        copy = self.model_copy()
        # A frozen model refuses assignment; this is where cached_property keeps its value.
        vars(copy)["cells"] = cells
        return copy

    def setting_aside(self, error: DamagedRecordError) -> SweepRecord:
        """Return the same sweep with the cell that the error names marked `damaged`: one bad cell hides no other.

        Raises the error if it is about something else.
        """
        at_fault = [cell for cell in self.cells if cell.is_named_in(error)]
        if not at_fault:
            raise error
        return self._with_cells([replace(cell, fault=str(error)) if cell in at_fault else cell for cell in self.cells])

    def cell_at(self, path: Path) -> CellRecord:
        """Return the cell in a folder as the question reads it.

        A cell of another question is read under the evaluation of its own run.
        """
        return next((cell for cell in self.cells if cell.path == path), CellRecord.at(path))

    def write(self) -> None:
        """Write sweep.json."""
        write_json(self.path / "sweep.json", {"schema": SCHEMA, **self.model_dump(mode="json", by_alias=True)})


def reading_around_damage(sweep: SweepRecord, read: Callable[[SweepRecord], Read]) -> Read:
    """Return the result of `read` for a sweep, leaving out the cells that it finds damaged.

    Raises DamagedRecordError if something else is damaged.
    """
    while True:
        try:
            return read(sweep)
        except DamagedRecordError as error:
            # Each round marks one more cell, so the loop ends.
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
        # Validated as JSON: strict mode then accepts an integer as a float.
        sweep = SweepRecord.model_validate_json(json.dumps(document | {"path": str(path)}))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'the question'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        ]
        more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise _damaged(file, "; ".join(faults[:_SHOWN_FAULTS]) + more) from None
    read = (path / "cells" / cell.dir / EVALUATIONS / (cell.evaluation or "") for cell in sweep.cell_entries)
    # Records may come from elsewhere: a link in them must not lead readers out of the folder.
    require_inside(path, read)
    return sweep


def _damaged(file: Path, fault: str) -> DamagedRecordError:
    return DamagedRecordError("records.sweep_damaged", path=file, fault=fault)
