from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.records.files import DamagedRecordError
from reports.measurements import Metric, MetricError, read_measurements
from tests.reports.rewriting import rewrite_rows, write_steps
from tests.reports.synthetic import write_sweep

ARMS = {"base": 0.0, "up": 3.0}


def test_the_metric_of_the_first_task_when_none_is_named(tmp_path):
    assert Metric.of(write_sweep(tmp_path / "a", ARMS, seeds=1)) == Metric("arithmetic", "pass@1")
    named = write_sweep(
        tmp_path / "b", ARMS, seeds=1, tasks=["gsm8k", "arithmetic"], metric="eval.final.arithmetic.pass@4"
    )
    assert Metric.of(named) == Metric("arithmetic", "pass@4")


@pytest.mark.parametrize(
    ("metric", "match"),
    [
        ("train.reward", "eval.final"),
        ("eval.final.maths.pass@1", "'maths'.*arithmetic"),
        ("eval.final.pass@3", r"nearest names: .*pass@[1248]"),
        ("eval.final.mean_tokens", "fraction"),
        ("eval.final.truncated_frac", r"more is better: pass@1, pass@2, .*, avg@n, cons@n$"),
        ("eval.final.arithmetic.ece", "more is better"),
        ("eval.final.pass@steps_frac", r"nearest names: [^_]*$"),
    ],
)
def test_a_metric_that_cannot_be_compared_is_refused(tmp_path, metric, match):
    with pytest.raises(ValueError, match=match):
        read_measurements(write_sweep(tmp_path, ARMS, seeds=1, metric=metric))


def test_a_damaged_score_is_no_fraction(tmp_path):
    sweep = write_sweep(tmp_path, ARMS, seeds=1)
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": row["metrics"] | {"pass@1": 1.3}})
    with pytest.raises(MetricError, match=r"pass@1 of base seed 0 is 1\.3: .* must be a fraction in \[0, 1\]"):
        read_measurements(sweep)


def test_a_sweep_without_a_finished_cell_is_refused(tmp_path):
    changes = {(arm, 0): {"state": "failed"} for arm in ARMS}
    with pytest.raises(ValueError, match=r"no cell of .* is done"):
        read_measurements(write_sweep(tmp_path, ARMS, seeds=1, changes=changes))


def test_grader_disagreement_counts_samples(tmp_path):
    (measurement,) = read_measurements(write_sweep(tmp_path, ARMS, seeds=1))["up"]
    assert measurement.grader_disagreement_frac == 0.5  # by construction of the synthetic verdicts
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
    ("change", "says"),
    [
        ({"verdicts": "{"}, "a sample's verdicts are '{', no JSON object"),
        ({"verdicts": "[]"}, "a sample's verdicts are '[]', no JSON object"),
        ({"verdicts": None}, "lacks verdicts in 1 places"),
        ({"correct": None}, "lacks correct in 1 places"),
    ],
)
def test_samples_with_gaps_are_a_damaged_record(tmp_path, change, says):
    (measurement,) = read_measurements(write_sweep(tmp_path, ARMS, seeds=1))["up"]
    path = measurement.cell.evals
    first, *rows = pyarrow.parquet.read_table(path).to_pylist()
    pyarrow.parquet.write_table(pa.Table.from_pylist([first | change, *rows]), path)
    with pytest.raises(DamagedRecordError, match=r"evals\.parquet: .*" + re.escape(says)):
        _ = measurement.grader_disagreement_frac
