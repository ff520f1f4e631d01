"""The folder of one sweep: the question as last run, and its cells. What the report and the mirror read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from harness.records.cell import CellRecord, is_cell_directory_name
from harness.records.files import DamagedRecordError, read_json, typed_rows
from harness.records.schema import require_readable
from harness.records.scores import require_bins


class _Source(TypedDict):
    task: str
    split: str
    origin: str
    digest: str


class _BaseScore(TypedDict):
    task: str
    metrics: dict[str, float | None]


@dataclass(frozen=True)
class SweepRecord:
    """A sweep on disk. `raw` is sweep.json; the properties name its parts, and raise DamagedRecordError for rows with
    gaps."""

    path: Path
    raw: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def is_search(self) -> bool:
        """Whether its arms are trials of `bench tune`."""
        return bool(self.raw.get("search"))

    @property
    def ablate(self) -> list[str]:
        """The knobs under test, as dotted prefixes; of a search those that it varies."""
        return list(self.raw["ablate"])

    @property
    def question(self) -> str:
        return str(self.raw["question"])

    @property
    def profile(self) -> str:
        return str(self.raw["profile"])

    @property
    def arms(self) -> list[str]:
        """Names, in the order of the sweep file."""
        return list(self.raw["arms"])

    @property
    def baseline(self) -> str:
        return str(self.raw["baseline"])

    @property
    def metric(self) -> str:
        """The compared metric, e.g. `eval.final.arithmetic.pass@1`."""
        return str(self.raw["metric"])

    @property
    def margin_pp(self) -> float:
        return float(self.raw["margin_pp"])

    @property
    def alpha(self) -> float:
        """Raises DamagedRecordError unless it is a level."""
        alpha = float(self.raw["alpha"])
        if not 0 < alpha < 1:
            raise DamagedRecordError(
                f"{self.path / 'sweep.json'}: alpha is {alpha:g}, but lies between 0 and 1. Restore it."
            )
        return alpha

    @property
    def new_problems(self) -> bool:
        """Whether intervals over new problems are asked for too."""
        return bool(self.raw.get("new_problems"))

    @property
    def seeds(self) -> list[int]:
        return list(self.raw["seeds"])

    @property
    def varied(self) -> dict[str, dict[str, Any]]:
        """Per arm the knobs in which arms differ, with their values."""
        return dict(self.raw["varied"])

    @property
    def grid(self) -> dict[str, dict[str, Any]]:
        """Of a factorial, per arm its value of every factor; empty where arms were stated one by one."""
        return dict(self.raw.get("grid") or {})

    @property
    def tasks(self) -> list[str]:
        return list(self.raw["tasks"])

    @property
    def k(self) -> list[int]:
        return list(self.raw["k"])

    @property
    def command(self) -> str:
        return str(self.raw["command"])

    @property
    def gate(self) -> dict[str, Any]:
        return dict(self.raw["gate"])

    @property
    def warnings(self) -> list[str]:
        return list(self.raw["warnings"])

    @property
    def budget_tokens(self) -> int | None:
        budget_tokens: int | None = self.raw["budget_tokens"]
        return budget_tokens

    def data_of(self, task: str) -> list[dict[str, Any]]:
        """Where the held-out rows of a task came from, `origin` and `digest`; [] if they were generated, or older
        records do not say."""
        rows = list(self.raw.get("data") or [])
        typed_rows(self.path / "sweep.json", rows, _Source)
        return [row for row in rows if (row["task"], row["split"]) == (task, "test")]

    @property
    def base_scores(self) -> list[dict[str, Any]]:
        """Scores of the model before training, a row per task; empty until measured."""
        rows = list(self.raw.get("base_scores") or [])
        for row in typed_rows(self.path / "sweep.json", rows, _BaseScore):
            require_bins(f"{self.path / 'sweep.json'}, {row['task']}", dict(row))
        return rows

    @cached_property
    def cells(self) -> list[CellRecord]:
        """The cells of this question, arm by arm, whether they have started or not."""
        return [
            CellRecord(self.path / "cells" / cell["dir"], cell["arm"], cell["seed"], cell["hash"])
            for cell in self.raw["cells"]
        ]

    @cached_property
    def other_cells(self) -> list[CellRecord]:
        """Cells of earlier versions of the question: listed, never mixed in."""
        ours = {cell.path.name for cell in self.cells}
        folder = self.path / "cells"
        paths = sorted(path for path in folder.iterdir() if path.name not in ours) if folder.exists() else []
        return [CellRecord.at(path) for path in paths if is_cell_directory_name(path.name)]


def read_sweep(path: Path) -> SweepRecord:
    """The sweep in a folder `runs/<sweep>`. FileNotFoundError if it was never run, DamagedRecordError for records that
    this version cannot read."""
    file = path / "sweep.json"
    return SweepRecord(path, require_readable(file, read_json(file)))
