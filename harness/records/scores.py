"""scores.jsonl: a row for each task of each evaluation of a cell, with its metrics. `<task>.json`: what lm-eval says of
one of its tasks.

Names of metrics of a final evaluation: `eval.final.<task>.<name>`, and which of them arms are compared by.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from harness.records.files import DamagedRecordError, read_jsonl, typed_rows


class _Score(TypedDict):
    """What every row has; more depends on the evaluation. generated_tokens: None in imported records."""

    step: int
    final: bool
    task: str
    generated_tokens: int | None
    metrics: dict[str, float | None]


class _Bin(TypedDict):
    """A bin of a reliability diagram: the samples whose answer has a confidence between two bounds."""

    count: int
    confidence: float | None
    correct_frac: float | None


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The rows in the order in which they were written; [] without the file. Raises DamagedRecordError, naming the row,
    if a row or a bin of its `reliability` lacks a field, or if a metric is not a number."""
    rows = read_jsonl(path)
    for number, row in enumerate(typed_rows(path, rows, _Score), start=1):
        require_bins(f"{path}, row {number}", rows[number - 1])
        if wrong := [name for name, value in row["metrics"].items() if not isinstance(value, int | float | None)]:
            raise DamagedRecordError(
                f"{path}, row {number}: the metric {', '.join(wrong)} is not a number. Restore the file, or move its "
                "folder away."
            )
    return rows


def require_bins(place: str, row: dict[str, Any]) -> None:
    """Raises DamagedRecordError, naming the place of the row, if the bins of its `reliability` lack a field. One whose
    samples were not drawn from the policy itself has none."""
    bins = row.get("reliability") or []
    if not isinstance(bins, list):
        raise DamagedRecordError(f"{place}: reliability is not a list. Restore the file, or move its folder away.")
    typed_rows(Path(f"{place}, reliability"), bins, _Bin)


# What lies beside the results of lm-eval's tasks in a folder of `bench eval`.
_NO_TASKS = frozenset({"spec", "provenance", "lease", "grading", "scores"})


def lm_eval_files(folder: Path) -> list[Path]:
    """`<task>.json` of each of lm-eval's tasks whose results a folder of `bench eval` holds, by name."""
    return [path for path in sorted(folder.glob("*.json")) if path.stem not in _NO_TASKS]


METRIC_PREFIX = "eval.final."

_OF_K_SAMPLES = ("pass@", "pass^", "maj@")
_OF_ALL_SAMPLES = ("avg@n", "cons@n")


def is_accuracy(name: str) -> bool:
    """Whether it is a fraction in [0, 1] of which more is better, as arms are compared by; of many others less is."""
    return name in _OF_ALL_SAMPLES or name.startswith(_OF_K_SAMPLES)


def accuracy_names(ks: Iterable[int]) -> list[str]:
    """Those that an evaluation with these k gives."""
    return [*(f"{name}{k}" for name in _OF_K_SAMPLES for k in ks), *_OF_ALL_SAMPLES]
