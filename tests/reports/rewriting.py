"""Changes to synthetic records after they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from harness.records import CellRecord, SweepRecord
from reports.report import Node
from tests.reports.synthetic import STEPS, TASK

Row = dict[str, Any]
Value = TypeVar("Value", bound=Node)


def changed(value: Value, **changes: Any) -> Value:
    """Return the same value of a report with other fields."""
    return type(value).model_validate(value.as_json() | changes)


def rewrite_rows(sweep: SweepRecord, file: str, change: Callable[[Row], Row], arm: str | None = None) -> None:
    """Change every row of a JSONL file of all cells, or of those of one arm."""
    for path in [cell.path / file for cell in sweep.cells if arm in (None, cell.arm)]:
        rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_steps(cell: CellRecord, rows: Sequence[Row]) -> None:
    """Another steps.jsonl, of a cell that finished after so many steps."""
    (cell.path / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cell.write_status(cell.state, step=len(rows))


def add_tasks(sweep: SweepRecord, shifts: Mapping[str, float]) -> None:
    """Evaluate every cell on further tasks too, on which its pass@1 is higher by a shift."""
    for cell in sweep.cells:
        rows = cell.read_scores()
        for task, shift in shifts.items():
            rows += [
                {**row, "task": task, "metrics": row["metrics"] | {"pass@1": (row["metrics"]["pass@1"] or 0) + shift}}
                for row in cell.read_scores()
            ]
        (cell.path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_spec(sweep: SweepRecord, arm: str, spec: Row) -> None:
    for cell in sweep.cells:
        if cell.arm == arm:
            (cell.path / "spec.json").write_text(json.dumps(spec))


def write_samples(cell: CellRecord, right: npt.NDArray[np.bool_]) -> None:
    """Replace a cell's final evaluation: which samples [n_problems, n_samples] are right."""
    problems, samples = (places.ravel() for places in np.indices(right.shape))
    columns: dict[str, Any] = {
        "problem_id": [f"p{problem:03d}" for problem in problems],
        "sample": samples,
        "correct": right.ravel(),
    }
    same = {"step": STEPS, "final": True, "task": TASK, "text": "", "verdicts": "{}", "n_tokens": 1, "truncated": False}
    columns |= {name: [value] * right.size for name, value in same.items()}
    pyarrow.parquet.write_table(pa.table(columns), cell.path / "evals.parquet")


def vary_samples(sweep: SweepRecord) -> None:
    """Let chance decide which samples of the final evaluations are right, as in evaluations of many seeds."""
    for number, cell in enumerate(sweep.cells):
        table = pyarrow.parquet.read_table(cell.evals)
        right = pa.array(np.random.default_rng(number).random(len(table)) < 0.5)
        place = table.column_names.index("correct")
        pyarrow.parquet.write_table(table.set_column(place, "correct", right), cell.evals)
