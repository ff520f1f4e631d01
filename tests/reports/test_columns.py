from __future__ import annotations

import json
import math

import numpy as np
import pytest

from harness.records.files import DamagedRecordError
from reports.columns import Columns
from reports.measurements import read_measurements
from tests.reports.synthetic import write_sweep


def test_what_a_row_lacks_or_is_not_finite_is_nan():
    columns = Columns.of([{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}, {"step": 3}, {"step": 4, "loss": 1e999}])
    assert columns.fields["step"].dtype == np.int64
    np.testing.assert_array_equal(columns["loss"], [0.5, math.nan, math.nan, math.nan])
    assert columns.known("loss").tolist() == [0.5]
    np.testing.assert_array_equal(columns["never"], [math.nan] * 4)
    assert math.isinf(columns.fields["loss"][-1])  # kept for the data files


def test_a_field_that_holds_no_number_is_a_damaged_record(tmp_path):
    (measurement,) = read_measurements(write_sweep(tmp_path, {"base": 0.0}, seeds=1))["base"]
    steps = measurement.cell.path / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"grad_norm": 1.0', '"grad_norm": "high"', 1))
    with pytest.raises(DamagedRecordError, match=r"steps\.jsonl: 'grad_norm' holds something that is no number"):
        _ = measurement.steps


@pytest.mark.parametrize("field", ["step", "generated_tokens"])
@pytest.mark.parametrize("lacks", ["the field", "a value"])
def test_a_step_without_what_curves_run_over_is_a_damaged_record(tmp_path, field, lacks):
    (measurement,) = read_measurements(write_sweep(tmp_path, {"base": 0.0}, seeds=1))["base"]
    path = measurement.cell.path / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[2] = {k: v for k, v in rows[2].items() if k != field} if lacks == "the field" else rows[2] | {field: None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DamagedRecordError, match=rf"steps\.jsonl: row 3 lacks '{field}'"):
        _ = measurement.steps
