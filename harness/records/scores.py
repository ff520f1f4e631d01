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


class _Bin(TypedDict):
    """Of a reliability diagram: the samples whose answer has a confidence between two bounds."""

    count: int
    confidence: float | None
    correct_frac: float | None


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The rows in the order in which they were written; [] without the file. Raises DamagedRecordError, naming the row,
    if one lacks a field of `_Score`, or has a metric that is no number, or a bin of `reliability` lacks one of its."""
    rows = read_jsonl(path)
    for number, row in enumerate(typed_rows(path, rows, _Score), start=1):
        require_bins(f"{path}, row {number}", rows[number - 1])
        if wrong := [name for name, value in row["metrics"].items() if not isinstance(value, int | float | None)]:
            raise DamagedRecordError(
                f"{path}, row {number}: the metric {', '.join(wrong)} is no number. Restore the file, or move its "
                "folder away."
            )
    return rows


def require_bins(place: str, row: dict[str, Any]) -> None:
    """Raises DamagedRecordError, naming the place of the row, if the bins of its `reliability` lack a field. One whose
    samples were not drawn from the policy itself has none."""
    bins = row.get("reliability") or []
    if not isinstance(bins, list):
        raise DamagedRecordError(f"{place}: reliability is no list. Restore the file, or move its folder away.")
    typed_rows(Path(f"{place}, reliability"), bins, _Bin)
