from __future__ import annotations

import math
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.records import CellRecord
from harness.records.files import DamagedRecordError
from harness.records.tables import read_columns
from reports.measure import analyse
from reports.measure.measurements import Columns, Measurement, MetricError, TaskMetric, read_measurements
from reports.measure.variance import declared_budgets
from reports.page.document import report_document
from tests.refusals import refuses
from tests.reports.rewriting import rewrite_rows, write_steps
from tests.reports.synthetic import write_sweep

ARMS = {"base": 0.0, "up": 3.0}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sweep"), ARMS, seeds=1)


@pytest.fixture
def one_cell(tmp_path):
    (measurement,) = read_measurements(write_sweep(tmp_path, {"base": 0.0}, seeds=1))["base"]
    return measurement


def test_the_metric_of_the_first_task_when_none_is_named(sweep):
    assert TaskMetric.of(sweep) == TaskMetric("arithmetic", "pass@1")
    named = {"tasks": ["gsm8k", "arithmetic"], "metric": "eval.final.arithmetic.pass@4"}
    assert TaskMetric.of(sweep.model_copy(update=named)) == TaskMetric("arithmetic", "pass@4")


@pytest.mark.parametrize(
    ("metric", "code"),
    [
        ("train.reward", "metric_malformed"),
        ("eval.final.maths.pass@1", "metric_of_unknown_task"),
        ("eval.final.pass@3", "metric_not_comparable"),
        ("eval.final.mean_tokens", "metric_not_comparable"),
        ("eval.final.truncated_frac", "metric_not_comparable"),
        ("eval.final.arithmetic.ece", "metric_not_comparable"),
        ("eval.final.pass@steps_frac", "metric_not_comparable"),
    ],
)
def test_a_metric_that_cannot_be_compared_is_refused(sweep, metric, code):
    with refuses(MetricError, f"reports.{code}", metric=metric) as refused:
        read_measurements(sweep.model_copy(update={"metric": metric}))
    assert "_" not in str(refused.value.fields.get("known", "")), "no fraction of which less is better"


def test_a_damaged_score_is_no_fraction(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1)
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": row["metrics"] | {"pass@1": 1.3}})
    with refuses(MetricError, "reports.score_not_a_fraction", metric="pass@1", arm="base", seed=0, value=1.3):
        read_measurements(sweep)


def test_a_sweep_without_a_finished_cell_is_refused(tmp_path):
    changes = {(arm, 0): {"state": "failed"} for arm in ARMS}
    with refuses(ValueError, "reports.no_cell_done"):
        read_measurements(write_sweep(tmp_path, ARMS, seeds=1, changes=changes))


def test_grader_disagreement_counts_samples(sweep):
    (measurement,) = read_measurements(sweep)["up"]
    assert measurement.grader_disagreement_frac == 0.5  # by construction of the synthetic verdicts
    assert measurement.final_samples is not None and measurement.final_samples.graders == ("math", "string")
    assert measurement.seconds("rollout_s") == pytest.approx(40 * 0.2)
    assert measurement.seconds("warp_s") is None
    assert measurement.step_mean("adv/abs_mean_at_rate_0") is None


def test_length_slope_is_growth_over_100_steps(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1)
    (measurement,) = read_measurements(sweep)["up"]
    rows = [{"step": step, "generated_tokens": step, "len/mean": 7.0 + 0.25 * step} for step in (1, 2, 4, 8)]
    write_steps(measurement.cell, rows)
    (measurement,) = read_measurements(sweep)["up"]
    assert measurement.length_slope_tokens == pytest.approx(25.0)
    write_steps(measurement.cell, rows[:1])
    (measurement,) = read_measurements(sweep)["up"]
    assert measurement.length_slope_tokens is None


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"verdicts": "{"}, "reports.sample_verdicts_damaged", {"verdicts": "{"}),
        ({"verdicts": "[]"}, "reports.sample_verdicts_damaged", {"verdicts": "[]"}),
        ({"verdicts": None}, "records.column_with_gaps", {"name": "verdicts", "n_gaps": 1}),
        ({"correct": None}, "records.column_with_gaps", {"name": "correct", "n_gaps": 1}),
    ],
)
def test_samples_with_gaps_are_a_damaged_record(one_cell, change, code, fields):
    path = one_cell.cell.evals
    first, *rows = pyarrow.parquet.read_table(path).to_pylist()
    pyarrow.parquet.write_table(pa.Table.from_pylist([first | change, *rows]), path)
    with refuses(DamagedRecordError, code, path="evals.parquet", **fields):
        _ = one_cell.grader_disagreement_frac


def test_what_a_row_lacks_or_is_not_finite_is_nan(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 1, "loss": 0.5, "never": null}\n{"step": 2, "loss": null}\n{"step": 3}\n')
    with path.open("a") as file:
        file.write('{"step": 4, "loss": Infinity}\n{"step": 5, "lo')  # the last line is torn
    columns = Columns.of(read_columns(path))
    assert columns.fields["step"].dtype == np.int64
    assert columns.length == 4
    np.testing.assert_array_equal(columns["loss"], [0.5, math.nan, math.nan, math.nan])
    assert columns.known("loss").tolist() == [0.5]
    for field in ("never", "unheard of"):
        np.testing.assert_array_equal(columns[field], [math.nan] * 4)
    assert math.isinf(columns.fields["loss"][-1])  # kept for the data files


@pytest.mark.parametrize("text", [None, "", "\n", '{"step": 1'])
def test_without_a_row_there_is_nothing(tmp_path, text):
    path = tmp_path / "steps.jsonl"
    if text is not None:
        path.write_text(text)
    assert Columns.of(read_columns(path), ["step"]).length == 0


def test_columns_are_what_the_rows_hold(one_cell):
    measurement, rows = one_cell, one_cell.cell.read_steps()
    assert measurement.steps.length == len(rows) > 0
    assert {name for row in rows for name in row} == set(measurement.steps.fields)
    for name, values in measurement.steps.fields.items():
        assert [None if value != value else value for value in values.tolist()] == [row.get(name) for row in rows]


@pytest.mark.parametrize(
    ("old", "new", "code", "fields"),
    [
        ('"grad_norm": 1.0', '"grad_norm": "high"', "records.columns_damaged", {}),
        ('"grad_norm": 1.0', '"grad_norm": 1.0, "grad_norm": 2.0', "records.columns_damaged", {}),
        ('"grad_norm": 1.0', '"grad_norm": nothing', "records.rows_damaged", {}),
        ('{"step": 3,', '{"step": 2,', "reports.measurement_damaged", {}),
        ('{"step": 3,', '{"step": 1,', "reports.measurement_damaged", {}),
        ('{"step": 40,', '{"step": 3,', "reports.measurement_damaged", {}),
        ('{"step": 3,', "{", "reports.measurement_damaged", {"fault": "row 3 lacks 'step'"}),
        ('{"step": 3,', '{"step": null,', "reports.measurement_damaged", {"fault": "row 3 lacks 'step'"}),
        ('"generated_tokens"', '"other"', "reports.measurement_damaged", {"fault": "row 1 lacks 'generated_tokens'"}),
    ],
)
def test_a_damaged_file_of_steps_is_named(one_cell, old, new, code, fields):
    steps = one_cell.cell.path / "steps.jsonl"
    steps.write_text(steps.read_text().replace(old, new, 1))
    with refuses(DamagedRecordError, code, path="steps.jsonl", **fields):
        _ = one_cell.steps


@pytest.mark.parametrize("value", ['"high"', "true", "[1.0]", '"2020-01-01"'])
def test_a_field_that_holds_no_number_is_a_damaged_record(one_cell, value):
    steps = one_cell.cell.path / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"grad_norm": 1.0', f'"grad_norm": {value}'))
    with refuses(DamagedRecordError, "reports.measurement_damaged", path="steps.jsonl") as refused:
        _ = one_cell.steps
    assert "grad_norm" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'\xef\xbb\xbf{"step": 1}\n{"step": 2}\n', 1),
        (b'{"step": 1} {"step": 2}\n{"step": 3}\n', 1),
        (b'{"step": 1}\n{"step": 2,\n"loss": 1.0}\n{"step": 3}\n', 2),
    ],
)
def test_lines_that_are_not_an_object_each_are_damage(tmp_path, text, line):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(text)
    with refuses(DamagedRecordError, "records.rows_damaged", path="steps.jsonl") as refused:
        read_columns(path)
    assert f"line {line}:" in str(refused.value)


@pytest.mark.parametrize(
    ("metric", "quantum_pp"), [("pass@1", 0.125), ("pass@8", 1.0), ("maj@2", 0.25), ("within_20", 0.125)]
)
def test_the_quantum_is_what_one_sample_changes_whatever_a_plug_ins_metric_is_called(tmp_path, metric, quantum_pp):
    """Of 100 problems with 8 samples each."""
    cell = write_sweep(tmp_path / "mine", {"base": 0.0}, seeds=1).cells[0]
    assert Measurement(cell, TaskMetric("arithmetic", metric)).quantum_pp == quantum_pp


def test_comparing_again_costs_nothing(tmp_path, monkeypatch):
    analysis = analyse(write_sweep(tmp_path, ARMS, seeds=4))
    expected = analysis.contrasts
    monkeypatch.setattr("reports.measure.interactions.compare_arms", None)
    assert [contrast for contrast, _ in declared_budgets(analysis)] == expected


def test_samples_of_one_cell_are_held_at_a_time(tmp_path, monkeypatch):
    """A sweep of a thousand cells has millions: each cell's are counted and let go before the next are read."""
    sweep = write_sweep(tmp_path, ARMS, seeds=3)
    read, tables, held = CellRecord.read_evals, [], []

    def watched(cell, columns=None, where=None):
        table = read(cell, columns, where)
        tables.append(weakref.ref(table))
        held.append(sum(one() is not None for one in tables))
        return table

    monkeypatch.setattr(CellRecord, "read_evals", watched)
    report_document(analyse(sweep))
    assert held == [1] * len(sweep.cells)  # and no cell's are read again


def test_blank_lines_and_those_of_another_system_are_no_damage(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"step": 1}\r\n\r\n{"step": 2}\r\n')
    assert read_columns(path)["step"].to_pylist() == [1, 2]
