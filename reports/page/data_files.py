"""The data behind a report as files: a CSV of the final scores, parquet for the big tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.formats import csv_text
from reports.measure.analysis import Analysis
from reports.measure.problems import problem_scores
from reports.page.templating import write_text

if TYPE_CHECKING:
    import pyarrow

FINAL_SCORES = "final_scores.csv"
PROBLEMS = "problems.parquet"
STEPS = "steps.parquet"

DATA_FILES = {FINAL_SCORES: "final scores", PROBLEMS: "problems", STEPS: "steps"}
"""The files besides those of the figures, with what they hold."""


def write_data(analysis: Analysis, folder: Path) -> None:
    """Write final_scores.csv; problems.parquet, the share of right samples by arm, seed and problem; steps.parquet,
    every field of every step of every cell."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FINAL_SCORES, csv_text(_final_scores(analysis)))
    _write_parquet(folder / PROBLEMS, problem_scores(analysis).rows())
    _write_parquet(folder / STEPS, _steps(analysis))


def _final_scores(analysis: Analysis) -> list[dict[str, Any]]:
    """A row for each finished cell and task, with every metric of its final evaluation."""
    return [
        {"arm": arm, "seed": m.cell.seed, "task": row["task"], "generated_tokens": row["generated_tokens"]}
        | row["metrics"]
        for arm, cells in analysis.measurements.items()
        for m in cells
        for row in m.scores
        if row["final"]
    ]


def _steps(analysis: Analysis) -> dict[str, pyarrow.Array]:
    """The columns of all steps; a field that a cell did not record is null there."""
    import pyarrow

    cells = [(arm, m.cell.seed, m.steps) for arm, some in analysis.measurements.items() for m in some]
    lengths = [steps.length for *_, steps in cells]
    fields = dict.fromkeys(name for *_, steps in cells for name in steps.fields)
    return {
        "arm": pyarrow.array(np.repeat([arm for arm, *_ in cells], lengths)),
        "seed": pyarrow.array(np.repeat([seed for _, seed, _ in cells], lengths)),
        **{
            name: pyarrow.array(
                np.concatenate([steps.fields.get(name, np.full(steps.length, np.nan)) for *_, steps in cells]),
                from_pandas=True,  # NaN becomes null
            )
            for name in fields
        },
    }


def _write_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")
