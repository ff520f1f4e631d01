"""Records with holes: a report comes out, without a traceback and without an empty panel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from matplotlib.axes import Axes

from harness.records import SweepRecord
from harness.records.files import DamagedRecordError
from reports.drawing.rendering import Drawing
from reports.figures import drawing_of
from reports.measure.measurements import MetricError, read_measurements
from reports.page import write_report
from tests.refusals import refuses
from tests.reports.rewriting import rewrite_rows, write_steps
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

Row = dict[str, Any]
ARMS = {"base": 0.0, "up": 3.0}


def keep_columns(sweep: SweepRecord, pattern: str, *names: str) -> None:
    for cell in sweep.cells:
        for path in cell.path.glob(pattern):
            pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).select(list(names)), path)


def metrics_but_the_score(value: float | None) -> Callable[[Row], Row]:
    def change(row: Row) -> Row:
        return row | {"metrics": {k: v if k == "pass@1" else value for k, v in row["metrics"].items()}}

    return change


def fields_of_a_step(value: float | None) -> Callable[[Row], Row]:
    return lambda row: {k: v if k in ("step", "generated_tokens") else value for k, v in row.items()}


def one_arm(folder) -> SweepRecord:
    return write_sweep(folder, {"base": 0.0}, seeds=2)


def one_cell(folder) -> SweepRecord:
    return write_sweep(folder, ARMS, seeds=1, changes={("base", 0): {"state": "failed"}})


def seeds_that_do_not_pair(folder) -> SweepRecord:
    changes = {("base", 0): {"state": "failed"}, ("up", 1): {"state": "running"}}
    return write_sweep(folder, ARMS, seeds=2, changes=changes)


def nan_everywhere(folder) -> SweepRecord:
    sweep = write_sweep(folder, ARMS, seeds=3)
    rewrite_rows(sweep, "scores.jsonl", metrics_but_the_score(float("nan")))
    rewrite_rows(sweep, "steps.jsonl", fields_of_a_step(float("nan")))
    return sweep


def nothing_but_scores(folder) -> SweepRecord:
    sweep = write_sweep(folder, ARMS, seeds=3, base_scores=[], best_of_n={})
    rewrite_rows(sweep, "scores.jsonl", lambda row: {k: row[k] for k in row if k not in ("reliability", "n_samples")})
    rewrite_rows(sweep, "scores.jsonl", metrics_but_the_score(None))
    rewrite_rows(sweep, "steps.jsonl", fields_of_a_step(None))
    for cell in sweep.cells:
        for path in [*cell.rollouts.glob("*"), cell.path / "evals.parquet", cell.path / "timing.jsonl"]:
            path.unlink()
    return sweep


def nan_in_one_seed(folder) -> SweepRecord:
    sweep = write_sweep(folder, ARMS, seeds=3)
    path = sweep.cells[-1].path / "scores.jsonl"
    path.write_text(re.sub(r'"pass@[248]": [0-9.]+', lambda match: match[0].split(":")[0] + ": NaN", path.read_text()))
    return sweep


def older_columns(folder) -> SweepRecord:
    sweep = write_sweep(folder, ARMS, seeds=3)
    keep_columns(sweep, "evals.parquet", "final", "task", "problem_id", "sample", "correct")
    keep_columns(sweep, "rollouts/*.parquet", "step", "problem_id", "text", "correct")
    return sweep


def no_step(folder) -> SweepRecord:
    sweep = write_sweep(folder, ARMS, seeds=2)
    for cell in sweep.cells:
        write_steps(cell, [])
        (cell.path / "scores.jsonl").write_text((cell.path / "scores.jsonl").read_text().splitlines()[-1] + "\n")
        for path in cell.rollouts.glob("*"):
            path.unlink()
        pyarrow.parquet.write_table(pa.table({"step": pa.array([], pa.int64())}), cell.rollouts / "0.parquet")
    return sweep


def a_metric_of_no_k(folder) -> SweepRecord:
    sweep = write_sweep(folder, ARMS, seeds=3)
    more = {
        f"{family}@{k}": 0.5 for family in ("pass", "maj") for k in ("x", "", "-1", "1.5", "\N{SUPERSCRIPT TWO}", "08")
    }
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": more | row["metrics"]})
    return sweep


@pytest.mark.parametrize(
    "records",
    [
        one_arm,
        one_cell,
        seeds_that_do_not_pair,
        nan_everywhere,
        nothing_but_scores,
        nan_in_one_seed,
        older_columns,
        no_step,
        a_metric_of_no_k,
    ],
)
def test_a_report_comes_out_and_no_panel_is_empty(tmp_path, monkeypatch, records):
    drawn: list[tuple[str, Drawing]] = []

    def watched(kind, name, *of):
        drawing = drawing_of(kind, name, *of)
        if drawing is not None:
            drawn.append((name, drawing))
        return drawing

    monkeypatch.setattr("reports.figures.drawing_of", watched)
    write_report(records(tmp_path / "records"), tmp_path / "report")
    html = (tmp_path / "report" / "index.html").read_text()
    assert "nan" not in re.sub(r"<svg.*?</svg>|<style.*?</style>", "", html, flags=re.DOTALL).lower().split()
    assert drawn
    for name, drawing in drawn:
        assert drawing.rows, name
        for axes in drawing.figure.axes:
            assert not axes.get_visible() or shows_something(axes), name


def shows_something(axes: Axes) -> bool:
    drawn = [line for line in axes.lines if np.isfinite(line.get_xydata()).all(axis=1).any()]
    # Grey lines and bands of reference come on top of what is shown.
    shown = [line for line in drawn if line.get_color() != "#808080" or line.get_linestyle() != "-"]
    return bool(shown) or any(text.get_text() == "not recorded" for text in axes.texts)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_metric_that_is_no_number_in_any_cell_says_so(tmp_path, value):
    sweep = write_sweep(tmp_path, ARMS, seeds=2)
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": row["metrics"] | {"pass@1": value}})
    with refuses(MetricError, "reports.metric_not_finite", metric="pass@1", task="arithmetic"):
        read_measurements(sweep)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("True", "reports.verdicts_not_boolean"),
        (1.0, "reports.verdicts_not_boolean"),
        (None, "records.column_with_gaps"),
    ],
)
def test_verdicts_that_are_neither_true_nor_false_are_a_damaged_record(tmp_path, value, code):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1)
    path = sweep.cells[0].evals
    table = pyarrow.parquet.read_table(path)
    column = pa.array([value] * len(table))
    table = table.set_column(table.column_names.index("correct"), "correct", column)
    pyarrow.parquet.write_table(table, path)
    (measurement,) = read_measurements(sweep)["base"]
    with refuses(DamagedRecordError, code, path="evals.parquet"):
        _ = measurement.final_samples
