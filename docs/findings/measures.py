"""What a finding looks at besides the compared score: numbers of single cells, from the tables of a report.

A measure is `TABLE.COLUMN`, where TABLE is a table under a report's data/ with arms and seeds: `final_scores`, `steps`,
or a figure's. Behind it may stand which rows count, `[bin=1]`, and `@end` for the last quarter of training. A cell's
value is the mean of its rows. `laws.line_minus_law` is by how much R = -a exp(H) + b misses the rest of the training
reward less than a line in H does, both fitted to its beginning (2505.22617).

The final scores are kept with every report, so a finding may ask for another one at any time. Values from other tables
are kept in measures.csv when the run ends.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import RefusedError
from harness.records.files import read_object
from reports.formats import csv_text
from reports.page.document import FINAL_SCORES
from reports.statistics import MIN_PAIRS, t_interval

MEASURES = "measures.csv"
_FORM = re.compile(r"(?P<table>\w+)\.(?P<column>[\w/@^]+?)(?:\[(?P<key>\w+)=(?P<value>[^\]]+)\])?(?P<end>@end)?")
_END_FRAC = 0.25
_ALPHA = 0.05

Values = dict[tuple[str, int], float]
"""A number of each cell, by arm and seed."""


@dataclass(frozen=True)
class Measure:
    """Where a number of a cell is found. only: the rows that count, as column and value."""

    table: str
    column: str
    only: tuple[str, str] | None
    at_end: bool

    @classmethod
    def parse(cls, text: str) -> Measure:
        found = _FORM.fullmatch(text)
        if found is None:
            raise RefusedError(f"{text!r}: a measure is TABLE.COLUMN, e.g. final_scores.mean_tokens_incorrect.")
        only = None if found["key"] is None else (found["key"], found["value"])
        return cls(found["table"], found["column"], only, found["end"] is not None)

    @property
    def is_score(self) -> bool:
        """Whether it is one of the final scores."""
        return f"{self.table}.csv" == FINAL_SCORES

    def values(self, report: Path) -> Values:
        """The mean of every cell; none where the report did not record it. report: the folder of a written report."""
        rows = _rows(report, self.table)
        if self.only is not None:
            key, wanted = self.only
            rows = [row for row in rows if str(row.get(key)) == wanted]
        cells: dict[tuple[str, int], list[float]] = {}
        for row in rows:
            if (number := _number(row.get(self.column))) is not None:
                cells.setdefault((row["arm"], int(row["seed"])), []).append(number)
        return {cell: self._mean(numbers) for cell, numbers in cells.items()}

    def _mean(self, numbers: Sequence[float]) -> float:
        counted = math.ceil(_END_FRAC * len(numbers)) if self.at_end else len(numbers)
        return float(np.mean(numbers[-counted:]))


def _rows(report: Path, table: str) -> list[dict[str, Any]]:
    if table == "laws":
        return list(_law_rows(report))
    if table == "steps":
        import pyarrow.parquet

        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(report / "data" / "steps.parquet").to_pylist()
        return rows
    path = report / "data" / f"{table}.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def _law_rows(report: Path) -> Iterable[dict[str, Any]]:
    for row in read_object(report / "report.json")["laws"]:
        forecast = row.get("forecast")
        if row["law"] == "entropy" and row["target"] == "training reward" and row["seed"] is not None and forecast:
            yield {**row, "line_minus_law": forecast["rmse_line"] - forecast["rmse_law"]}


def _number(given: object) -> float | None:
    if given in (None, ""):
        return None
    number = float(str(given))
    return number if math.isfinite(number) else None


def measures_table(report: Path, measures: Iterable[str]) -> str:
    """The measures of a written report as CSV, a row for each cell and measure; "" if all are final scores, which are
    kept without it."""
    rows = [
        {"arm": arm, "seed": seed, "measure": text, "value": value}
        for text, measure in ((one, Measure.parse(one)) for one in measures)
        if not measure.is_score
        for (arm, seed), value in measure.values(report).items()
    ]
    return csv_text(rows) if rows else ""


def kept_values(record: Path, measure: str) -> Values:
    """What was kept of a measure with a report; none where it was not recorded."""
    if (asked := Measure.parse(measure)).is_score:
        return asked.values(record)
    if not (record / MEASURES).is_file():
        return {}
    with (record / MEASURES).open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["measure"] == measure]
    return {(row["arm"], int(row["seed"])): float(row["value"]) for row in rows}


@dataclass(frozen=True)
class Difference:
    """The difference of two arms in a measure, over the seeds of both. low, high: the 95% t interval; NaN below three
    seeds."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def ends(self) -> str:
        """The interval as text; "" without one."""
        return "" if math.isnan(self.low) else f"[{self.low:+.3g}, {self.high:+.3g}]"


def difference(values: Mapping[tuple[str, int], float], arm: str, baseline: str | None) -> Difference | None:
    """An arm minus the baseline, seed by seed; the arm's own values without one. None if no seed has a value."""
    pairs = [
        value - (0.0 if baseline is None else values[baseline, seed])
        for (one, seed), value in values.items()
        if one == arm and (baseline is None or (baseline, seed) in values)
    ]
    if not pairs:
        return None
    low, high = t_interval(pairs, _ALPHA) if len(pairs) >= MIN_PAIRS else (math.nan, math.nan)
    return Difference(float(np.mean(pairs)), float(low), float(high), len(pairs))
