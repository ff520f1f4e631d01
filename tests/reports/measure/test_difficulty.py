from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.records.files import DamagedRecordError
from reports.measure.difficulty import BINS, bin_of, difficulty
from reports.measure.measurements import Measurement, read_measurements
from tests.reports.rewriting import write_steps
from tests.reports.synthetic import write_sweep


def test_bins_of_pass_rates():
    rates = np.array([0, 0.01, 0.24, 0.25, 0.49, 0.5, 0.74, 0.75, 0.99, 1])
    assert bin_of(rates).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def measurement_with(tmp_path: Path, rollouts: list[dict[str, Any]], steps: list[dict[str, Any]]) -> Measurement:
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=1)
    (cell,) = sweep.cells
    for path in cell.rollouts.glob("*"):
        path.unlink()
    if rollouts:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rollouts), cell.rollouts / "000001-000002.parquet")
    write_steps(cell, steps)
    return read_measurements(sweep)["base"][0]


def rollout(step: int, problem: str, right: bool, tokens: int) -> dict[str, Any]:
    return {"step": step, "problem_id": problem, "correct": right, "tokens": [0] * tokens}


def test_shares_lengths_and_advantages_by_bin(tmp_path):
    rollouts = [
        *(rollout(1, "half", right, 10) for right in (True, False)),
        *(rollout(1, "none", False, 30) for _ in range(2)),
        *(rollout(2, "half", True, 40) for _ in range(2)),  # the same prompt, always solved in another step
    ]
    by_rate = [{"below_three_quarters": 1.0, "0": 0.25}, {"1": 0.5}]
    steps = [
        {"step": step, "generated_tokens": 80 * step} | {f"adv/abs_mean_at_rate_{name}": rates[name] for name in rates}
        for step, rates in enumerate(by_rate, start=1)
    ]
    found = difficulty(measurement_with(tmp_path, rollouts, steps))
    assert found is not None
    # Sums of |A|: 20 tokens * 1, 60 * 0.25 and 80 * 0.5 of 75.
    expected = {
        "0": (15 / 75, 0.25, 30, 1 / 3),
        "below_three_quarters": (20 / 75, 1.0, 10, 1 / 3),
        "1": (40 / 75, 0.5, 40, 1 / 3),
    }
    for i, name in enumerate(BINS):
        values = (found.share[i], found.advantage[i], found.tokens[i], found.prompts[i])
        if name in expected:
            assert values == pytest.approx(expected[name])
        else:
            assert values[3] == 0 and np.isnan([found.advantage[i], found.tokens[i]]).all()


def test_records_without_advantages_still_have_lengths(tmp_path):
    found = difficulty(measurement_with(tmp_path, [rollout(1, "a", True, 7)], [{"step": 1, "generated_tokens": 7}]))
    assert found is not None
    assert found.tokens[-1] == 7
    assert np.isnan(found.share).all() and np.isnan(found.advantage).all()


def test_without_rollouts_or_their_columns_there_is_nothing(tmp_path):
    assert difficulty(measurement_with(tmp_path / "none", [], [])) is None
    assert difficulty(measurement_with(tmp_path / "older", [{"step": 1, "text": "x"}], [])) is None


def test_a_file_without_rows_is_passed_over(tmp_path):
    measurement = measurement_with(tmp_path, [rollout(1, "a", True, 7)], [{"step": 1, "generated_tokens": 7}])
    (path,) = measurement.cell.rollouts.glob("*")
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).slice(0, 0), path)
    assert difficulty(measurement) is None


def test_a_completion_without_a_verdict_is_a_damaged_record(tmp_path):
    gap = rollout(1, "a", True, 7) | {"correct": None}
    measurement = measurement_with(tmp_path, [rollout(1, "a", True, 7), gap], [])
    with pytest.raises(DamagedRecordError, match=r"000001-000002\.parquet: lacks correct in 1 places"):
        difficulty(measurement)
