"""Expected times from cells whose records are made here, so that every figure can be worked out by hand."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from harness.config.run_spec import RunSpec
from harness.plan.expected_time import ExpectedTime, Pace, expected_time, finished_paces, in_words, pace_of
from harness.records import CellRecord
from harness.records.files import append_jsonl, write_json
from tests.frozen import frozen
from tests.harness.run.small import small_spec

# A step generates at most 4 x 4 x 32 = 512 tokens.
BATCH_TOKENS = 512


def cell(
    home: Path, settings: dict[str, Any] | None = None, host: str | None = None, hash: str = "0" * 10
) -> CellRecord:
    """4 steps of 2 s and half the tokens that there could be, evaluations of 8 problems x (2 + 4) samples in 12 s, and
    3 s of something else."""
    record = CellRecord.at(home / "made" / "cells" / f"arm-s0-{hash}")
    record.path.mkdir(parents=True)
    write_json(record.path / "spec.json", small_spec(settings).model_dump(mode="json"))
    owner = {"host": host or socket.gethostname(), "pid": 1}
    append_jsonl(
        record.path / "starts.jsonl", [{"epoch": 1, "from_step": 0, "owner": owner, "time": "2026-01-01T00:00:00Z"}]
    )
    steps = [{"step": step, "total_s": 2.0, "epoch": 1} for step in (1, 2, 3, 4)]
    evaluations = [
        {"step": 2, "eval_s": 4.0, "elapsed_s": 10.0, "epoch": 1},
        {"step": 4, "eval_s": 8.0, "elapsed_s": 23.0, "epoch": 1},
    ]
    append_jsonl(record.path / "timing.jsonl", [*steps, *evaluations])
    scores = {"task": "arithmetic", "metrics": {"pass@1": 0.5}, "generated_tokens": 1, "n_problems": 8, "epoch": 1}
    rows = [{"step": 2, "final": False, "n_samples": 2}, {"step": 4, "final": True, "n_samples": 4}]
    append_jsonl(record.path / "scores.jsonl", [scores | row for row in rows])
    record.write_status("done", step=4, steps=4, generated_tokens=2 * BATCH_TOKENS)
    return record


def of(home: Path, settings: dict[str, Any], count: int = 1, at_once: int = 1) -> float | None:
    expected = expected_time([small_spec(settings)] * count, home, at_once)
    return None if expected is None else expected.seconds


BASE_S = 8 * 4 * 0.25
"""The evaluation before training: 8 problems x 4 samples at 12 s / 48."""


def test_the_pace_of_a_cell(tmp_path: Path) -> None:
    assert pace_of(cell(tmp_path)) == Pace(
        small_spec(), step_s=2.0, filled_frac=0.5, sample_s=0.25, problems=8, rest_s=3.0
    )


def test_a_cell_takes_what_one_like_it_took_and_the_model_before_training_once(tmp_path: Path) -> None:
    cell(tmp_path)
    assert of(tmp_path, {}) == pytest.approx(23 + BASE_S)
    assert of(tmp_path, {}, count=3) == pytest.approx(3 * 23 + BASE_S)
    assert of(tmp_path, {}, count=3, at_once=2) == pytest.approx(2 * 23 + BASE_S), "the third waits for a slot"


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"train.steps": 8, "eval.every": 0}, 8 * 2 + 8 + 3),
        ({"train.steps": 8}, 8 * 2 + 3 * 4 + 8 + 3),  # an evaluation every second step
        ({"rollout.prompts_per_step": 8}, 4 * 4 + 4 + 8 + 3),  # twice the tokens a step
        ({"budget.tokens": 3 * BATCH_TOKENS // 2 - 1}, 3 * 2 + 4 + 8 + 3),  # half the tokens: three steps reach it
        ({"eval.max_completion_tokens": 64}, 8 + 2 * 4 + 2 * 8 + 3),
        ({"eval.problems": None}, 8 + 4 + 8 + 3),
    ],
)
def test_steps_go_by_tokens_and_evaluations_by_samples(
    settings: dict[str, Any], seconds: float, tmp_path: Path
) -> None:
    cell(tmp_path)
    spec = small_spec(settings)
    (pace,) = finished_paces(tmp_path, [spec])
    assert pace.cell_s(spec) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "settings",
    [
        {"model.source": "scratch:tiny"},
        {"rollout.prompts_per_step": 20},  # five times the batch
        {"train.updates_per_rollout": 2},
        {"algorithm": "dpo"},
        {"reward.parts.vr_cli": 1.0},
        {"model.lora.type": "lora"},
    ],
)
def test_a_cell_of_another_kind_of_work_tells_nothing(settings: dict[str, Any], tmp_path: Path) -> None:
    cell(tmp_path)
    assert of(tmp_path, settings) is None


def test_cells_of_other_machines_and_damaged_or_unfinished_ones_tell_nothing(tmp_path: Path) -> None:
    cell(tmp_path, host="elsewhere", hash="a" * 10)
    cell(tmp_path, hash="b" * 10).write_status("interrupted")
    append_jsonl(cell(tmp_path, hash="c" * 10).path / "starts.jsonl", [{"epoch": 2, "from_step": 2, "time": "later"}])
    (cell(tmp_path, hash="d" * 10).path / "spec.json").write_text("{")
    write_json(cell(tmp_path, hash="e" * 10).path / "spec.json", {"another": "version"})
    assert finished_paces(tmp_path, [small_spec()]) == []


def test_the_same_objective_counts_before_others(tmp_path: Path) -> None:
    cell(tmp_path)
    slow = cell(tmp_path, {"objective.scale": "none"}, hash="b" * 10)
    append_jsonl(slow.path / "timing.jsonl", [{"step": 4, "total_s": 42.0, "elapsed_s": 65.0, "epoch": 1}])
    assert of(tmp_path, {}) == pytest.approx(23 + BASE_S)


def test_a_step_is_timed_where_no_cell_fits(tmp_path: Path) -> None:
    cell(tmp_path)
    timed: list[RunSpec] = []

    def measure(spec: RunSpec) -> Pace:
        timed.append(spec)
        return Pace(spec, step_s=1.0, filled_frac=1.0, sample_s=0.0, problems=8, rest_s=0.0)

    two = [small_spec({"train.epochs": 2, "eval.every": 0}, seed=seed) for seed in (0, 1)]
    expected = expected_time([small_spec(), *two], tmp_path, 1, measure)
    assert expected is not None
    assert timed == two[:1], "one step serves all cells that it fits"
    assert expected.as_json() == {
        "seconds": pytest.approx(23 + 2 * 4 + BASE_S), "cells": 3, "at_once": 1, "from": "a timed step", "measured": 1
    }  # fmt: skip
    nothing = ExpectedTime(0.0, 0, 1, None, 0)
    frozen("plan/time", f"{in_words(expected, lambda _: 'TIME')}\n{in_words(nothing, str)}")


def test_nothing_to_run_takes_no_time(tmp_path: Path) -> None:
    assert expected_time([], tmp_path, 2) == ExpectedTime(0.0, 0, 2, None, 0)
