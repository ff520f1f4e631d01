"""W&B's CSV exports, implemented from its documentation and not tried on real files.

A chart ("Export as CSV") has `Step`, and for each run `<run> - <metric>`, with `__MIN` and `__MAX` next to it. The
table of runs has `Name`, `State`, then settings and summaries by their names, one row per run.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from harness.errors import RefusedError
from harness.shelves.imports.base import ImportedRun, ImportFormat, Score, beginning
from harness.shelves.imports.formats.trl import BOOKKEEPING
from harness.shelves.imports.names import OURS, log, score_of

_STEPS = ("Step", "train/global_step", "global_step", "trainer/global_step")
_OF_RUNS = ("Name", "State")
_NO_SETTINGS = frozenset(
    {
        *OURS,
        "Name",
        "State",
        "Notes",
        "User",
        "Tags",
        "Created",
        "Runtime",
        "Sweep",
        "ID",
        "Group",
        "Job Type",
        "Updated",
    }
) - {"learning_rate"}  # a setting of that name; what was logged is train/learning_rate


def _reads(source: str) -> bool:
    if Path(source).suffix.lower() != ".csv":
        return False
    columns = next(csv.reader([beginning(source, 65536).decode("utf-8-sig", errors="replace").partition("\n")[0]]), [])
    return {*_OF_RUNS} <= {*columns} or (columns[:1] != [] and columns[0] in _STEPS and " - " in "".join(columns))


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    return [run for source in sources for run in _runs(source)]


def _runs(source: str) -> list[ImportedRun]:
    with Path(source).open(encoding="utf-8-sig", newline="") as handle:
        rows = [*csv.reader(handle)]
    columns, *values = rows
    for number, row in enumerate(values, start=2):
        if len(row) != len(columns):
            raise RefusedError(
                "shelves.imports.wandb_row_length",
                source=source,
                number=number,
                n_values=len(row),
                n_columns=len(columns),
            )
    return _of_runs(source, columns, values) if columns[0] not in _STEPS else _of_chart(source, columns, values)


def _of_chart(source: str, columns: list[str], rows: list[list[str]]) -> list[ImportedRun]:
    runs: dict[str, ImportedRun] = {}
    # A run's name may contain " - ", so the last one separates it from the metric.
    for place, column in enumerate(columns[1:], start=1):
        name, dash, metric = column.rpartition(" - ")
        if not dash or metric.endswith(("__MIN", "__MAX")):
            continue
        run = runs.setdefault(name, ImportedRun(source, name))
        for number, row in enumerate(rows, start=2):
            if row[place]:  # a run logs at steps of its own
                log(
                    run,
                    int(_number(source, number, columns[0], row[0])),
                    {metric: _number(source, number, column, row[place])},
                )
    return [*runs.values()]


def _of_runs(source: str, columns: list[str], rows: list[list[str]]) -> list[ImportedRun]:
    runs = []
    for number, row in enumerate(rows, start=2):
        fields = dict(zip(columns, row, strict=True))
        if fields["State"] != "finished":
            raise RefusedError(
                "shelves.imports.wandb_run_unfinished", source=source, number=number, state=fields["State"]
            )
        run = ImportedRun(source, fields["Name"])
        for name, text in fields.items():
            if (found := score_of(name)) is not None and text:
                run.scores.append(Score(*found, _number(source, number, name, text)))
            elif name not in _NO_SETTINGS and not name.startswith("train/"):
                run.config[name] = int(text) if text.isdecimal() else text
        runs.append(run)
    return runs


def _number(source: str, row: int, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RefusedError(
            "shelves.imports.wandb_not_a_number", source=source, number=row, column=column, text=text
        ) from None


WANDB = ImportFormat(
    "wandb",
    "CSV exports of W&B, of a chart or the table of runs (untried on files of its own)",
    _reads,
    _read,
    BOOKKEEPING,
)
