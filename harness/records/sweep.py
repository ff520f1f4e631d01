"""The folder of one sweep or search: the question as last asked, and its cells. What reports and the mirror read."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.records.cell import CellRecord, is_cell_directory_name
from harness.records.files import DamagedRecordError, read_json, write_json
from harness.records.scores import is_accuracy, require_bins

SCHEMA = 3
"""The version of sweep.json and of the cells beside it, raised when the meaning of a record changes, so that no
version misreads another's. Schema 1: see `_from_schema_1`. In schema 2 every cell had its own evaluation only."""

_SHOWN_FAULTS = 3


class _Part(BaseModel):
    """Strict, but what a later version adds is passed over."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", populate_by_name=True)


class CellEntry(_Part):
    """A cell of the question. evaluation: as in `CellRecord`. origin: where its records come from, unless `bench run`
    trained it in this home."""

    arm: str
    seed: int
    hash: str
    dir: str
    evaluation: str | None = None
    origin: dict[str, Any] | None = None


class Gate(_Part):
    """Whether arms differ in declared knobs only, and the knobs in which they differ."""

    ok: bool
    differs: list[str]


class Asked(_Part):
    """How the question was asked: the files, which lie in the folder `question` beside sweep.json, and the options.

    folder: where the sweep file lay. settings, seeds, arms: of --set, --seeds, --arms.
    """

    file: str
    profile: str
    folder: str
    settings: list[str] = []
    seeds: int | None = None
    arms: list[str] = []


class Plugin(_Part):
    """A plug-in that was in use. digest: of its closure, whose files lie in the folder `question/code`."""

    name: str
    digest: str
    files: list[str]


class MetricFacts(_Part):
    """What a reader must know of a metric; see `evals.metrics.Metric`."""

    unit: str
    better: Literal["more", "less"] | None
    compares_arms: bool


class Source(_Part):
    """Where the rows of a split came from. More depends on the origin."""

    model_config = ConfigDict(extra="allow")

    task: str
    split: str
    origin: str
    digest: str


class BaseScore(_Part):
    """The evaluation of the model before training on one task. More is in scores.jsonl's form."""

    model_config = ConfigDict(extra="allow")

    task: str
    metrics: dict[str, float | None]


class Screened(_Part):
    """A screening, which ranks its arms: the `best` are confirmed on so many fresh `seeds`.

    confirmed_in: the sweep that did it, None before that. contrasts: those of its report.json.
    """

    best: int
    seeds: int
    confirmed_in: str | None = None
    contrasts: list[dict[str, Any]] = []


class SweepRecord(_Part):
    """sweep.json, and the cells beside it.

    kind: whether its arms were stated, or are the trials of a search. checkpoint: the model that all cells evaluate as
    it is, as the sweep file names it; None where they train. arms: in the order of the sweep file. metric: the
    compared one, e.g. `eval.final.arithmetic.pass@1`. ablate: the knobs under test, as dotted prefixes; in a search
    those that it varies. varied: by arm, the knobs in which arms differ. grid: in a factorial, by arm its value of
    every factor, else empty. new_problems: whether intervals over new problems are asked for too. contamination: by
    task, held-out problems that occur in training prompts. best_of_n: by arm, what choosing by its reward model gives.
    """

    path: Path = Field(exclude=True)
    kind: Literal["sweep", "search"]
    name: str
    question: str
    profile: str
    command: str
    checkpoint: str | None = None
    arms: list[str]
    grid: dict[str, dict[str, Any]] = {}
    baseline: str
    metric: str
    metrics: dict[str, MetricFacts] = {}
    margin_pp: float
    alpha: Annotated[float, Field(gt=0, lt=1)]
    new_problems: bool = False
    screening: Screened | None = None
    seeds: list[int]
    ablate: list[str]
    co_changes: dict[str, str] = {}
    varied: dict[str, dict[str, Any]]
    cell_entries: list[CellEntry] = Field(alias="cells")
    tasks: list[str]
    k: list[int]
    gate: Gate
    warnings: list[str]
    budget_tokens: int | None
    contamination: list[dict[str, Any]] = []
    data: list[Source] = []
    base_scores: list[dict[str, Any]] = []
    best_of_n: dict[str, list[dict[str, Any]]] = {}
    asked: Asked | None = None
    plugins: list[Plugin] = []

    @model_validator(mode="after")
    def _arms_are_known(self) -> SweepRecord:
        named = {self.baseline, *(cell.arm for cell in self.cell_entries)}
        if strangers := sorted(named - {*self.arms}):
            raise ValueError(
                f"{', '.join(strangers)} is its baseline or the arm of a cell, but not among its arms "
                f"{', '.join(self.arms)}"
            )
        for row in self.base_scores:
            BaseScore.model_validate(row)
            require_bins(f"{self.path / 'sweep.json'}, {row['task']}", row)
        return self

    @property
    def is_search(self) -> bool:
        return self.kind == "search"

    def data_of(self, task: str) -> list[Source]:
        """Where the held-out rows of a task came from; [] if they were generated, or older records do not say."""
        return [row for row in self.data if (row.task, row.split) == (task, "test")]

    def compares_arms(self, metric: str) -> bool:
        """Whether arms can be compared by a metric: as `evals.metrics` knew it when the sweep ran; in older records by
        its name."""
        return self.metrics[metric].compares_arms if metric in self.metrics else is_accuracy(metric)

    @cached_property
    def cells(self) -> list[CellRecord]:
        """The cells of this question, arm by arm, whether they have started or not."""
        return [
            CellRecord(self.path / "cells" / cell.dir, cell.arm, cell.seed, cell.hash, cell.evaluation)
            for cell in self.cell_entries
        ]

    @cached_property
    def other_cells(self) -> list[CellRecord]:
        """Cells of earlier versions of the question: listed, never mixed in."""
        ours = {cell.dir for cell in self.cell_entries}
        folder = self.path / "cells"
        paths = sorted(path for path in folder.iterdir() if path.name not in ours) if folder.exists() else []
        return [CellRecord.at(path) for path in paths if is_cell_directory_name(path.name)]

    def cell_at(self, path: Path) -> CellRecord:
        """The cell in a folder, as the question reads it; one of another question under the evaluation that it was run
        with."""
        return next((cell for cell in self.cells if cell.path == path), CellRecord.at(path))

    def write(self) -> None:
        """Write sweep.json."""
        write_json(self.path / "sweep.json", {"schema": SCHEMA, **self.model_dump(mode="json", by_alias=True)})


def read_sweep(path: Path) -> SweepRecord:
    """The sweep in a folder `runs/<sweep>`. FileNotFoundError if it was never run, DamagedRecordError for records that
    this version cannot read."""
    file = path / "sweep.json"
    raw = read_json(file)
    if not isinstance(raw, dict):
        raise _damaged(file, "it holds no question")
    schema = raw.get("schema", 1)
    if not isinstance(schema, int):
        raise _damaged(file, "its schema is not a number")
    if schema > SCHEMA:
        raise DamagedRecordError(
            f"{file}: was written by a newer version of bench (records of schema {schema}, this one reads up to "
            f"{SCHEMA}). Use that version."
        )
    document = _from_schema_1(raw) if schema == 1 else raw
    try:
        # As JSON, in which a whole number stands for a real one.
        return SweepRecord.model_validate_json(json.dumps(document | {"path": str(path)}))
    except ValidationError as error:
        lacking = sorted(".".join(map(str, fault["loc"])) for fault in error.errors() if fault["type"] == "missing")
        if lacking and schema == 1:
            raise DamagedRecordError(
                f"{file}: lacks {', '.join(lacking)}; an older version of bench wrote it. `bench run` writes it anew "
                "and trains no finished cell again."
            ) from None
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'the question'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        ]
        more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise _damaged(file, "; ".join(faults[:_SHOWN_FAULTS]) + more) from None


def _damaged(file: Path, fault: str) -> DamagedRecordError:
    return DamagedRecordError(f"{file}: is damaged: {fault}. `bench run` writes it anew.")


def _from_schema_1(raw: dict[str, Any]) -> dict[str, Any]:
    """A question in the form of schema 1: `search` says whether it is one, and what was not asked for may be null."""
    document = {key: value for key, value in raw.items() if value is not None or key == "budget_tokens"}
    return {"ablate": [], **document, "kind": "search" if raw.get("search") else "sweep"}
