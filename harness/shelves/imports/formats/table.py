"""Tables of your own, as CSV, JSONL or Parquet: one row per graded sample, or per number.

By problem: `correct` and `problem`, and if there are several, `arm`, `seed`, `task`, `sample` and `step`. If known,
also `tokens`, `text`, and the problem's `prompt` and `answer`. By metric: `metric` and `value`, and `arm`, `seed`,
`task` and `step`. Columns `config.<knob>` hold the settings of the row's run.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import SupportsFloat

from harness.errors import RefusedError, few, nearest, shown
from harness.records.scores import content_of
from harness.shelves.imports.base import RESULTS, ImportedRun, ImportedSample, ImportFormat, Score, beginning
from harness.shelves.imports.names import OURS, metric_name

BY_PROBLEM = ("arm", "seed", "task", "problem", "sample", "correct", "tokens", "step", "text", "prompt", "answer")
BY_METRIC = ("arm", "seed", "task", "metric", "value", "step")
CONFIG = "config."
_TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}

Numbered = tuple[int, dict[str, object]]
"""A row with its number in the file, counted as an editor counts lines."""


def _reads(source: str) -> bool:
    path = Path(source.lower())
    if path.suffix == ".parquet":
        return beginning(source, 4) == b"PAR1"
    first = beginning(source, 65536).partition(b"\n")[0].decode("utf-8", errors="replace")
    if path.suffix == ".csv":
        # Excel begins a UTF-8 CSV with a byte order mark.
        columns = [one.strip(' "') for one in first.strip().lstrip("\ufeff").split(",")]
    elif path.suffix == ".jsonl":
        try:
            row = json.loads(first)
        except ValueError:
            return False
        columns = list(row) if isinstance(row, dict) else []
    else:
        return False
    return "correct" in columns or {"metric", "value"} <= {*columns} or {"arm", "seed"} <= {*columns}


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    return [run for source in sources for run in _runs(source)]


def _runs(source: str) -> list[ImportedRun]:
    rows = [*_ROWS[Path(source.lower()).suffix](source)]
    if not rows:
        raise RefusedError("shelves.imports.table_without_rows", source=source)
    columns = [*dict.fromkeys(name for _, row in rows for name in row)]
    by_problem = "correct" in columns or ("problem" in columns and "metric" not in columns)
    if by_problem and "metric" in columns:
        raise RefusedError(
            "shelves.imports.table_of_both_kinds",
            source=source,
            by_problem=", ".join(BY_PROBLEM),
            by_metric=", ".join(BY_METRIC),
        )
    for needed in ("problem", "correct") if by_problem else ("metric", "value"):
        if needed not in columns:
            raise RefusedError(
                "shelves.imports.no_column",
                source=source,
                column=needed,
                nearest=nearest(needed, columns),
                columns=few(columns),
                by_problem=", ".join(BY_PROBLEM),
                by_metric=", ".join(BY_METRIC),
            )
    table = _Table(source, {*columns})
    for number, row in rows:
        (table.add_sample if by_problem else table.add_score)(number, row)
    return [*table.runs.values()]


class _Table:
    """Collects the rows of one file by run."""

    def __init__(self, source: str, columns: set[str]) -> None:
        self.source, self.columns = source, columns
        self.runs: dict[tuple[str | None, int | None], ImportedRun] = {}
        self._first: dict[tuple[object, ...], int] = {}

    def add_sample(self, number: int, row: Mapping[str, object]) -> None:
        """Add a row of a table by problem.

        Raises RefusedError, with the position, for a faulty value or a repeated key.
        """
        run = self._run_of(number, row)
        task, problem = self._task(number, row), str(self._value(number, row, "problem"))
        sample, step = self._whole(number, row, "sample"), self._whole(number, row, "step")
        correct = _TRUTH.get(str(self._value(number, row, "correct")).strip().lower())
        if correct is None:
            raise self._refused(number, "correct", row["correct"], "must be true, false, 1 or 0")
        self._require_new(number, (run.arm, run.seed, task, step, problem, sample))
        text, prompt, answer = (
            None if row.get(name) is None else str(row[name]) for name in ("text", "prompt", "answer")
        )
        run.samples.append(
            ImportedSample(
                *(task, problem, sample or 0, correct, step, self._whole(number, row, "tokens")),
                text=text,
                prompt=prompt,
                answer=answer,
                content=content_of(prompt, answer or "") if prompt else None,
            )
        )

    def add_score(self, number: int, row: Mapping[str, object]) -> None:
        """Add a row of a table by metric.

        Raises RefusedError, with the position, for a faulty value or a repeated key.
        """
        run = self._run_of(number, row)
        task, metric = self._task(number, row), str(self._value(number, row, "metric"))
        step, value = self._whole(number, row, "step"), self._number(number, row, "value")
        if not math.isfinite(value):
            raise self._refused(number, "value", row["value"], "must be a finite number")
        self._require_new(number, (run.arm, run.seed, task, step, metric))
        if step is not None and metric in _OF_STEPS:
            run.steps.setdefault(step, {})[metric] = value
        else:
            run.scores.append(Score(task, metric_name(metric), value, step))

    def _run_of(self, number: int, row: Mapping[str, object]) -> ImportedRun:
        """Return the run of a row, with the row's settings added.

        Raises RefusedError if they contradict an earlier row.
        """
        arm = str(self._value(number, row, "arm")) if "arm" in self.columns else None
        seed = self._whole(number, row, "seed")
        run = self.runs.setdefault((arm, seed), ImportedRun(self.source, Path(self.source).stem, arm, seed))
        for name in sorted(one for one in self.columns if one.startswith(CONFIG)):
            knob, value = name.removeprefix(CONFIG), row.get(name)
            if run.config.setdefault(knob, value) != value:
                raise self._refused(number, name, value, f"is {shown(run.config[knob])} in another row of the same run")
        return run

    def _task(self, number: int, row: Mapping[str, object]) -> str:
        return str(self._value(number, row, "task")) if "task" in self.columns else RESULTS

    def _value(self, number: int, row: Mapping[str, object], column: str) -> object:
        value = row.get(column)
        if value is None or value == "" or value != value:  # NaN
            raise RefusedError("shelves.imports.cell_empty", source=self.source, number=number, column=column)
        return value

    def _number(self, number: int, row: Mapping[str, object], column: str) -> float:
        """Return a value as a number; NaN if it is none."""
        given = self._value(number, row, column)
        try:
            return float(given) if isinstance(given, str | SupportsFloat) else math.nan
        except ValueError:
            return math.nan

    def _whole(self, number: int, row: Mapping[str, object], column: str) -> int | None:
        """Return a whole number from 0, or None if the table has no such column."""
        if column not in self.columns:
            return None
        value = self._number(number, row, column)
        if not (math.isfinite(value) and value >= 0 and value == int(value)):
            raise self._refused(number, column, row[column], "must be a whole number from 0")
        return int(value)

    def _require_new(self, number: int, key: tuple[object, ...]) -> None:
        first = self._first.setdefault(key, number)
        if first != number:
            kinds = [one for one in ("arm", "seed", "task", "sample", "step") if one not in self.columns]
            also = f" If they differ, add the column that says so: {' or '.join(kinds)}." if kinds else ""
            known = ", ".join(str(one) for one in key if one is not None)
            raise RefusedError(
                "shelves.imports.key_repeated", source=self.source, number=number, first=first, known=known, also=also
            )

    def _refused(self, number: int, column: str, given: object, rule: str) -> RefusedError:
        return RefusedError(
            "shelves.imports.cell_refused",
            source=self.source,
            number=number,
            column=column,
            given=shown(given),
            rule=rule,
        )


_OF_STEPS = frozenset(OURS.values())
"""Metrics of training that a table with steps may contain, under the names of steps.jsonl."""


def _csv_rows(source: str) -> Iterator[Numbered]:
    # The csv module splits lines itself, so that quoted values may contain line breaks.
    with Path(source).open(encoding="utf-8-sig", newline="") as handle:
        rows = csv.DictReader(handle, skipinitialspace=True)
        try:
            for row in rows:
                # DictReader puts surplus values under the key None, and fills missing ones with None.
                if None in row or None in row.values():
                    raise RefusedError(
                        "shelves.imports.csv_row_length",
                        source=source,
                        number=rows.line_num,
                        more_or_fewer="more" if None in row else "fewer",
                        n_columns=len(rows.fieldnames or []),
                    )
                yield rows.line_num, row
        except UnicodeDecodeError as error:  # the file is decoded ahead of the rows, so none can be named
            raise RefusedError("shelves.imports.not_utf8", source=source, error=error) from None
        except csv.Error as error:
            raise RefusedError("shelves.imports.not_csv", source=source, number=rows.line_num, error=error) from None


def _jsonl_rows(source: str) -> Iterator[Numbered]:
    with Path(source).open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise RefusedError("shelves.imports.row_not_json", source=source, number=number, error=error) from None
            if not isinstance(row, dict):
                raise RefusedError("shelves.imports.row_not_an_object", source=source, number=number, row=shown(row))
            yield number, row


def _parquet_rows(source: str) -> Iterator[Numbered]:
    from harness.records.files import DamagedRecordError
    from harness.records.tables import read_parquet

    try:
        rows = read_parquet(Path(source)).to_pylist()
    except DamagedRecordError:
        raise RefusedError("shelves.imports.not_parquet", source=source) from None
    yield from enumerate(rows, start=1)


_ROWS: dict[str, Callable[[str], Iterator[Numbered]]] = {
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": _parquet_rows,
}

TABLE = ImportFormat(
    "table",
    "CSV, JSONL or Parquet of your own, a row a sample (arm, seed, task, problem, sample, correct) or a number (arm, "
    "seed, metric, value)",
    _reads,
    _read,
)
