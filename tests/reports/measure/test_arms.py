from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records import CellRecord
from reports.formats import duration, megabytes
from reports.measure import analyse
from reports.measure.arms import hidden_knob_warnings, summarise_cost
from reports.measure.measurements import Measurement, TaskMetric
from reports.report import ArmRow
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def arms(tmp_path_factory) -> list[ArmRow]:
    changes = {("base", seed): {"score": score} for seed, score in enumerate([0.4, 0.5, 0.6])}
    folder = tmp_path_factory.mktemp("sweep")
    return analyse(write_sweep(folder, {"base": 0.0, "up": 3.0}, seeds=3, changes=changes, budget_tokens=160_000)).arms


def test_score_and_t_interval_over_seeds(arms):
    base = arms[0]
    assert (base.mean_pp, base.n) == (pytest.approx(50), 3)
    half_width = 4.302653 * 10 / 3**0.5
    assert (base.low_pp, base.high_pp) == pytest.approx((50 - half_width, 50 + half_width))


@pytest.mark.parametrize(
    ("frac", "baseline", "warned"),
    [(0.2, 0.2, 0), (0.45, 0.2, 1), (0.05, 0.2, 1), (0.35, 0.2, 0), (None, 0.2, 0), (0.05, 0.0, 0)],
)
def test_clipping_far_more_or_fewer_steps_is_a_hidden_second_knob(frac, baseline, warned):
    assert len(hidden_knob_warnings([("up", frac), ("base", baseline)])) == warned


def test_a_share_of_clipped_steps_that_is_not_0_is_not_written_as_0():
    (warning,) = hidden_knob_warnings([("up", 0.00403), ("base", 0.118)])
    assert "0.403%" in warning and "11.8%" in warning


# The third step is the slow one: a mean would show it.
STEPS: list[dict[str, Any]] = [
    {"step": 1, "total_s": 2.0, "rollout_s": 1.0, "sync_s": 0.1, "prefill_s": 0.2, "decode_s": 0.6, "reward_s": 0.3,
     "logprob_s": 0.4, "update_s": 0.5, "backward_s": 0.35, "tokens_per_s": 100.0, "occupancy_frac": 0.9,
     "padding_frac": 0.1, "peak_memory_mb": 500.0, "micro_batch_tokens": 64},
    {"step": 2, "total_s": 4.0, "rollout_s": 3.0, "sync_s": 0.3, "prefill_s": 0.4, "decode_s": 0.8, "reward_s": 0.5,
     "logprob_s": 0.6, "update_s": 0.7, "backward_s": 0.55, "tokens_per_s": 300.0, "occupancy_frac": 0.7,
     "padding_frac": 0.3, "peak_memory_mb": 900.0, "micro_batch_tokens": 32},
    {"step": 2, "eval_s": 5.0},
    {"step": 3, "total_s": 99.0, "rollout_s": 98.0, "sync_s": 97.0, "prefill_s": 96.0, "decode_s": 95.0,
     "reward_s": 94.0, "logprob_s": 93.0, "update_s": 92.0, "backward_s": 91.0, "tokens_per_s": 9999.0,
     "occupancy_frac": 0.99, "padding_frac": 0.98, "peak_memory_mb": 800.0, "micro_batch_tokens": 32},
    {"step": 3, "eval_s": 7.0},
]  # fmt: skip


Measured = Callable[[list[dict[str, Any]]], Measurement]


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    def write(rows: list[dict[str, Any]]) -> Measurement:
        folder = tmp_path / f"arm-s{len(list(tmp_path.iterdir()))}-0123456789"
        folder.mkdir()
        (folder / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Measurement(CellRecord.at(folder), TaskMetric("arithmetic", "pass@1"))

    return write


def test_medians_over_steps(measured: Measured) -> None:
    assert summarise_cost([measured(STEPS)]).as_json() == {
        "step_s": 4.0, "rollout_s": 3.0, "sync_s": 0.3, "prefill_s": 0.4, "decode_s": 0.8, "reward_s": 0.5,
        "logprob_s": 0.6, "update_s": 0.7, "backward_s": 0.55, "tokens_per_s": 300.0, "occupancy_frac": 0.9,
        "padding_frac": 0.3, "evaluation_s": 12.0, "peak_memory_mb": 900.0, "micro_batch_tokens": 32,
    }  # fmt: skip


def test_means_over_cells_of_those_that_recorded_it(measured: Measured) -> None:
    older = [{"step": 1, "total_s": 10.0, "tokens_per_s": None, "occupancy_frac": float("nan")}]
    cost = summarise_cost([measured(STEPS), measured(older), measured(STEPS[:1])])
    assert cost.step_s == pytest.approx((4.0 + 10.0 + 2.0) / 3)
    assert cost.tokens_per_s == pytest.approx((300.0 + 100.0) / 2)
    assert cost.occupancy_frac == pytest.approx(0.9)
    assert cost.peak_memory_mb == pytest.approx((900 + 500) / 2)
    assert cost.evaluation_s == 12.0
    assert set(summarise_cost([measured([])]).as_json().values()) == {None}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (1.0, "1.0 s"),
        (75, "1 min 15 s"),
    ],
)
def test_duration(value: float | None, text: str) -> None:
    assert duration(value) == text


def test_megabytes() -> None:
    assert [megabytes(value) for value in (None, 0.4, 999.4, 1000, 12345)] == ["–", "0 MB", "999 MB", "1 GB", "12.3 GB"]
