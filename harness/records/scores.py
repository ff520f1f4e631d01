"""scores.jsonl: a row for each task of each evaluation of a cell, with its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from harness.records.files import DamagedRecordError, read_jsonl, typed_rows


class _Score(TypedDict):
    """What every row has; more depends on the evaluation."""

    step: int
    final: bool
    task: str
    generated_tokens: int
    metrics: dict[str, float | None]


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The rows in the order in which they were written; [] without the file. Raises DamagedRecordError, naming the row,
    if one lacks a field of `_Score`, or has a metric that is no number."""
    rows = read_jsonl(path)
    for number, row in enumerate(typed_rows(path, rows, _Score), start=1):
        if wrong := [name for name, value in row["metrics"].items() if not isinstance(value, int | float | None)]:
            raise DamagedRecordError(
                f"{path}, row {number}: the metric {', '.join(wrong)} is no number. Restore the file, or move its "
                "folder away."
            )
    return rows
