"""The folder of one sweep: the question as last run, and its cells. What the report and the mirror read.

Records of other versions of bench: read where they say enough, refused in words where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from harness.records.cell import CellRecord, is_cell_directory_name
from harness.records.files import DamagedRecordError, read_json, typed_rows
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
    def co_changes(self) -> dict[str, str]:
        """The knobs that change along with those under test, each with its reason."""
        return dict(self.raw.get("co_changes") or {})

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

    @property
    def contamination(self) -> list[dict[str, Any]]:
        """For each evaluation task, how many of its problems occur in the training prompts; empty in older records."""
        return list(self.raw.get("contamination") or [])

    @property
    def best_of_n(self) -> dict[str, list[dict[str, Any]]]:
        """For each arm with a reward model the best of n completions of the starting policy by it, a row for each n."""
        return {arm: rows or [] for arm, rows in (self.raw.get("best_of_n") or {}).items()}

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


SCHEMA = 1
"""Of sweep.json and the cells beside it; those of before it was written down are of the first. Raised when records come
to mean something else, so that neither version misreads the other's."""

# What older records lack and readers do without is not here: data, base_scores, best_of_n, contamination.
_NEEDED: dict[str, Any] = {
    **dict.fromkeys(("name", "question", "profile", "baseline", "metric", "command"), str),
    **dict.fromkeys(("arms", "seeds", "cells", "tasks", "k", "warnings"), list),
    **dict.fromkeys(("margin_pp", "alpha"), int | float),
    **dict.fromkeys(("varied", "gate"), dict),
    "budget_tokens": int | None,
}


class _Cell(TypedDict):
    arm: str
    seed: int
    hash: str
    dir: str


def require_readable(path: Path, raw: Any) -> dict[str, Any]:
    """raw: the contents of the sweep.json at `path`. Raises DamagedRecordError if this version cannot read it."""
    if not isinstance(raw, dict):
        raise DamagedRecordError(f"{path}: is damaged: it holds no question. `bench run` writes it anew.")
    if not isinstance(raw.get("schema", SCHEMA), int):
        raise DamagedRecordError(f"{path}: is damaged: its schema is no number. `bench run` writes it anew.")
    if raw.get("schema", SCHEMA) > SCHEMA:
        raise DamagedRecordError(
            f"{path}: was written by a newer version of bench (records of schema {raw['schema']}, this one reads up to "
            f"{SCHEMA}). Use that version."
        )
    if missing := sorted(key for key in _NEEDED if key not in raw):
        raise DamagedRecordError(
            f"{path}: lacks {', '.join(missing)}; an older version of bench wrote it. `bench run` writes it anew and "
            "trains no finished cell again."
        )
    if wrong := [key for key, kind in _NEEDED.items() if not isinstance(raw[key], kind)]:
        raise DamagedRecordError(
            f"{path}: is damaged: it holds something else in {', '.join(wrong)}. `bench run` writes it anew."
        )
    typed_rows(path, raw["cells"], _Cell)
    if strangers := sorted({raw["baseline"], *(cell["arm"] for cell in raw["cells"])} - {*map(str, raw["arms"])}):
        raise DamagedRecordError(
            f"{path}: is damaged: {', '.join(strangers)} is its baseline or the arm of a cell, but not among its arms "
            f"{', '.join(map(str, raw['arms']))}. `bench run` writes it anew."
        )
    return raw
