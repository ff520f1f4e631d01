"""The data behind a report as files: a CSV for each figure and for the final scores, parquet for the big tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.analysis import Analysis
from reports.csv_text import csv_text
from reports.figures.rendering import RenderedFigure

if TYPE_CHECKING:
    import pyarrow

FINAL_SCORES = "final_scores.csv"
PROBLEMS = "problems.parquet"
STEPS = "steps.parquet"

DATA_FILES = {
    FINAL_SCORES: "final scores",
    PROBLEMS: "problems",
    STEPS: "steps",
}
"""Beside those of the figures, with what they hold."""


def write_data(analysis: Analysis, figures: Sequence[RenderedFigure], folder: Path) -> None:
    """Write into `folder`, which exists: `<figure>.csv`, the numbers shown; final_scores.csv; problems.parquet, the
    share of right samples by arm, seed and problem; steps.parquet, every field of every step of every cell."""
    for figure in figures:
        _write_csv(folder / f"{figure.name}.csv", figure.csv)
    _write_csv(folder / FINAL_SCORES, csv_text(_final_scores(analysis)))
    _write_parquet(folder / PROBLEMS, analysis.problems.rows())
    _write_parquet(folder / STEPS, _steps(analysis))


def _final_scores(analysis: Analysis) -> list[dict[str, Any]]:
    """A row per finished cell and task, with every metric of its final evaluation."""
    return [
        {"arm": arm, "seed": m.cell.seed, "task": row["task"], "generated_tokens": row["generated_tokens"]}
        | row["metrics"]
        for arm, cells in analysis.measurements.items()
        for m in cells
        for row in m.scores
        if row["final"]
    ]


def _steps(analysis: Analysis) -> dict[str, pyarrow.Array]:
    """Columns; a field that a cell did not record is null there."""
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


def _write_csv(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")
