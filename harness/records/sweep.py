"""The folder of one sweep or search: its latest question and its cells. Reports and the mirror read it."""

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
"""The states of a cell that will not run again."""

_SHOWN_FAULTS = 3
Read = TypeVar("Read")


class CellEntry(Part):
    arm: str
    seed: int
    hash: str
    dir: PlainName
    evaluation: PlainName | None = None
    """See `CellRecord.evaluation`."""
    origin: dict[str, object] | None = None
    """Where the cell's records come from; None if `bench run` trained it in this home."""


class Gate(Part):
    """The result of the check that arms differ only in declared knobs, and the knobs in which they differ."""

    ok: bool | None
    """None if the settings of imported runs are unknown."""
    differs: list[str]


class Asked(Part):
    """The command that asked the question: its options and its files, which are kept in the folder `question`."""

    file: PlainName
    profile: str
    folder: str
    """The folder that contained the sweep file."""
    settings: list[str] = []
    """The values of --set. `seeds` and `arms` are the values of --seeds and --arms."""
    seeds: int | None = None
    arms: list[str] = []
    on_gpu: bool | None = None
    """True if cells whose settings name no device run on a GPU."""


class Plugin(Part):
    name: str
    digest: str
    """The digest of the plug-in's module and the modules that it imports. Copies are in the folder `question/code`."""
    files: list[str]


class MetricFacts(Part):
    """The properties of a metric that a reader needs; see `evals.metrics.Metric`."""

    unit: str
    better: Literal["more", "less"] | None
    compares_arms: bool


class Source(Part):
    """The origin of the rows of one split. Further fields depend on the kind of origin."""

    model_config = ConfigDict(extra="allow")

    task: str
    split: str
    origin: str
    digest: str
    rows: int | None = None


class BaseScore(Part):
    """The evaluation of the model before training on one task. Further fields are those of a row of scores.jsonl."""

    model_config = ConfigDict(extra="allow")

    task: str
    metrics: dict[str, float | None]


class TunedArm(Part):
    digest: str
    """A digest of the search's specification."""
    trial: int
    values: dict[str, object]
    """The values of the tuned knobs in the best trial."""
    search_pp: float
    """The best trial's score in the search, in percent."""
    default_pp: float | None
    """The score of the untuned arm in the search, in percent; None if it was not a trial."""
    complete: int
    """The number of trials that were scored."""
    generated_tokens: int
    """The number of completion tokens sampled in training, over all trials."""
    at_end: list[str]
    """The knobs whose best value lies at an end of the tried values."""
    short_pp: float
    """An estimate of how far the best possible setting lies above the best trial. `short_sd_pp` is its sd. See
    `harness.search.shortfall`.
    """
    short_sd_pp: float


class Tuning(Part):
    """The searches that tuned each arm before the comparison."""

    knobs: list[str]
    ranges: dict[str, dict[str, object]] = {}
    """Maps each knob to its range, as written in the sweep file."""
    trials: int
    seeds: list[int]
    """The seeds on which each trial is trained."""
    searches: dict[str, PlainName]
    """Maps each arm to the name of the folder that contains its trials."""
    arms: dict[str, TunedArm]
    """Maps each arm whose search has ended to its result."""


class Screened(Part):
    """A screening: the arms are ranked, and the best `best` of them are confirmed on `seeds` fresh seeds."""

    best: int
    seeds: int
    confirmed_in: PlainName | None = None
    """The sweep that confirmed the best arms, or None if no sweep has done so yet."""
    contrasts: list[dict[str, object]] = []
    """The contrasts in the report.json of that sweep."""


class SweepRecord(Part):
    """The content of sweep.json, and the cells next to it."""

    path: Path = Field(exclude=True)
    kind: Literal["sweep", "search"]
    """A sweep's arms are listed in its file. The arms of a search are its trials."""
    name: str
    question: str
    profile: str
    command: str
    checkpoint: str | None = None
    """The model that all cells evaluate without training, as named in the sweep file; None if cells train."""
    arms: list[str]
    grid: dict[str, dict[str, object]] = {}
    """The value of every factor in each arm of a factorial design; empty in other designs."""
    leave_one_out: bool = False
    """True if each arm other than the baseline resets one knob of the baseline's recipe to its ordinary value."""
    baseline: str
    metric: str
    """The metric by which arms are compared, e.g. `eval.final.arithmetic.pass@1`."""
    metrics: dict[str, MetricFacts]
    margin_pp: float
    alpha: Annotated[float, Field(gt=0, lt=1)]
    new_problems: bool = False
    """True if the report also gives intervals that generalise to new problems."""
    screening: Screened | None = None
    seeds: list[int]
    ablate: list[str]
    """The knobs under test, as dotted prefixes; in a search, the searched knobs."""
    co_changes: dict[str, str] = {}
    varied: dict[str, dict[str, object]]
    """Maps each arm to the knobs in which arms differ and their values."""
    cell_entries: list[CellEntry] = Field(alias="cells")
    tasks: list[str]
    k: list[int]
    gate: Gate
    warnings: list[str]
    budget_tokens: int | None
    contamination: list[dict[str, object]] = []
    """The held-out problems that occur in training prompts, task by task."""
    data: list[Source] = []
    base_scores: list[dict[str, object]] = []
    base_scores_by_arm: dict[str, list[dict[str, object]]] = {}
    best_of_n: dict[str, list[dict[str, int | float]]] = {}
    """Maps each arm to the results of choosing the best of n samples by its reward model."""
    asked: Asked | None = None
    plugins: list[Plugin] = []
    asks: str
    """An id of the question that does not depend on its seeds, samples and problems."""
    contrasts: list[str]
    """Ids of the compared pairs of arms, each with the task and metric. Questions that share one share its looks."""
    evaluation: Evaluation | None
    held_out: dict[str, int]
    """The number of held-out problems of each task, if the plan knew it."""
    looks: list[Look] = []
    """The looks at this question and at earlier questions in this folder, in order of time. `designs` has the same
    scope.
    """
    matching: dict[str, Matching] = {}
    """Maps each task to how the problems of imported cells were matched."""
    designs: list[PlannedLooks] = []
    tuning: Tuning | None = None
    """The searches that tuned each arm; None if arms were not tuned."""

    @model_validator(mode="after")
    def _arms_are_known(self) -> SweepRecord:
        """Raise ValueError if the baseline or a cell has an unknown arm, or if a base score is invalid."""
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
        """Return the evaluations of the model from which an arm (None: every arm) starts, or [] before they exist."""
        rows = self.base_scores if arm is None else self.base_scores_by_arm.get(arm, self.base_scores)
        return cast(list[EvaluationRow], rows)

    @property
    def is_search(self) -> bool:
        return self.kind == "search"

    @property
    def is_imported(self) -> bool:
        """True if its cells were imported from other tools. If so, each cell's `origin` says where it came from."""
        return any(cell.origin is not None and "imported_from" in cell.origin for cell in self.cell_entries)

    def data_of(self, task: str) -> list[Source]:
        """Return the origins of a task's held-out rows, or [] if the rows were generated or imported."""
        return [row for row in self.data if (row.task, row.split) == (task, "test")]

    def n_held_out(self, task: str) -> int | None:
        """Return the number of held-out problems of a task, or None if the records do not say."""
        rows = [source.rows for source in self.data_of(task) if source.rows is not None]
        return self.held_out.get(task, rows[-1] if rows else None)

    def compares_arms(self, metric: str) -> bool:
        """Return whether arms can be compared by a metric, according to the metric's declaration when the sweep ran."""
        return metric in self.metrics and self.metrics[metric].compares_arms

    @cached_property
    def cells(self) -> list[CellRecord]:
        """All cells of this question, arm by arm, including those that have not started."""
        return [
            CellRecord(self.path / "cells" / cell.dir, cell.arm, cell.seed, cell.hash, cell.evaluation)
            for cell in self.cell_entries
        ]

    @cached_property
    def other_cells(self) -> list[CellRecord]:
        """The cells of earlier questions in this folder. They are listed, but their results are not used."""
        ours = {cell.dir for cell in self.cell_entries}
        folder = self.path / "cells"
        paths = sorted(path for path in folder.iterdir() if path.name not in ours) if folder.exists() else []
        return [CellRecord.at(path) for path in paths if is_cell_directory_name(path.name) and path.is_dir()]

    @property
    def is_complete(self) -> bool:
        """True if every cell has ended, so that the verdicts are those of the complete plan."""
        return all(cell.state in ENDED for cell in self.cells)

    @property
    def design(self) -> PlannedLooks | None:
        """The looks that were planned for this question; None if none were planned."""
        return next((design for design in self.designs if design.question == self.asks), None)

    @property
    def look(self) -> Look:
        """The look that showing the verdicts of this plan amounts to, once all its cells have ended."""
        design = self.design
        # A look counts as planned only if it has exactly the planned evaluation and the first of the planned seeds.
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
        """The looks taken so far at this question's comparisons, whichever question they belonged to."""
        return looks_at(self.looks, self.asks, self.contrasts)

    @property
    def looks_and_this(self) -> list[Look]:
        """`looks_taken`, plus `look` unless it is at the same data as one of them."""
        return looks_at([*self.looks, self.look], self.asks, self.contrasts)

    def record_look(self, verdicts: Mapping[str, str]) -> None:
        """Record that these verdicts were shown.

        verdicts: maps each arm to its verdict. Nothing is recorded if cells have not ended, if the same data were shown
        before, or if there are too few seeds for any test.
        """
        # Another process may have recorded a look since this record was read, so sweep.json is read again.
        now = read_sweep(self.path)
        is_known = any(look.is_same(self.look) for look in now.looks)
        if self.is_complete and not is_known and {*verdicts.values()} - {"no_test"}:
            look = self.look.model_copy(update={"verdicts": {**verdicts}})
            now.model_copy(update={"looks": [*now.looks, look]}).write()

    def stand(self) -> str:
        """Return a digest that changes with the question and with the records of its cells, but not with looks.

        It uses names, sizes and modification times of files, not their contents.
        """
        asked = self.model_dump(mode="json", exclude={"looks"})
        cells = [(str(cell.path), cell.state, stand(cell.path)) for cell in self.cells]
        content = json.dumps([asked, cells, [cell.path.name for cell in self.other_cells]])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def as_it_stands(self) -> SweepRecord:
        """The same sweep with the present states of its cells cached, for a reader that needs the states repeatedly."""
        return self._with_cells([cell.as_it_stands for cell in self.cells])

    def _with_cells(self, cells: list[CellRecord]) -> SweepRecord:
        copy = self.model_copy()
        # A frozen model does not allow assignment; cached_property stores its value in this dict.
        vars(copy)["cells"] = cells
        return copy

    def setting_aside(self, error: DamagedRecordError) -> SweepRecord:
        """Return the same sweep with the cell that the error names marked as `damaged`, so that the others can be read.

        Raises the error if it is about something else.
        """
        at_fault = [cell for cell in self.cells if cell.is_named_in(error)]
        if not at_fault:
            raise error
        return self._with_cells([replace(cell, fault=str(error)) if cell in at_fault else cell for cell in self.cells])

    def cell_at(self, path: Path) -> CellRecord:
        """Return the cell in a folder, read under the evaluation that this question compares.

        A cell of another question is read under the evaluation that was part of its run.
        """
        return next((cell for cell in self.cells if cell.path == path), CellRecord.at(path))

    def write(self) -> None:
        write_json(self.path / "sweep.json", {"schema": SCHEMA, **self.model_dump(mode="json", by_alias=True)})


def reading_around_damage(sweep: SweepRecord, read: Callable[[SweepRecord], Read]) -> Read:
    """Return `read(sweep)`, leaving out the cells that `read` finds damaged.

    Raises DamagedRecordError if something other than a cell is damaged.
    """
    while True:
        try:
            return read(sweep)
        except DamagedRecordError as error:
            # Each pass marks one more cell, so the loop ends.
            sweep = sweep.setting_aside(error)


def read_sweep(path: Path) -> SweepRecord:
    """Return the sweep in a folder.

    Raises FileNotFoundError if there is no sweep.json, DamagedRecordError if it is damaged, and as `require_schema`.
    """
    file = path / "sweep.json"
    document = read_json(file)
    if not isinstance(document, dict):
        raise _damaged(file, "it holds no question")
    require_schema(file, document)
    try:
        # The document is validated as JSON: strict mode then accepts an integer as a float.
        sweep = SweepRecord.model_validate_json(json.dumps(document | {"path": str(path)}))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'the question'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        ]
        more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise _damaged(file, "; ".join(faults[:_SHOWN_FAULTS]) + more) from None
    read = (path / "cells" / cell.dir / EVALUATIONS / (cell.evaluation or "") for cell in sweep.cell_entries)
    # Records may come from elsewhere. A link in them must not lead readers out of the folder.
    require_inside(path, read)
    return sweep


def _damaged(file: Path, fault: str) -> DamagedRecordError:
    return DamagedRecordError("records.sweep_damaged", path=file, fault=fault)
