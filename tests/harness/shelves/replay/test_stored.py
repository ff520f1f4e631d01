from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from harness.errors import RefusedError
from harness.records import CellRecord
from harness.records.files import DamagedRecordError, append_jsonl
from harness.records.rollouts import write_rollouts
from harness.shelves.replay.stored import StoredStep, read_steps
from tests.harness.run.small import small_spec
from tests.refusals import refuses

PLAIN: dict[str, Any] = {"step": 3, "sample": 0, "logps": [-1.0, -2.0]}
PLAIN |= {"reward": 1.0, "correct": True, "truncated": False}
RECORDED = {
    "token/logp": [-1.5, -2.5],
    "token/log_ratio": [[0.25, -0.25], None],
    "token/chars": [1, 1],
    "token/update": [0, 1],
}
ROWS = [
    PLAIN | RECORDED,
    PLAIN | {"sample": 1, "logps": [-3.0], "reward": None, "correct": False, "truncated": True},
    PLAIN,
]
"""Two completions of one prompt, of which the second was not learned from, and one of another."""


def stored(folder: Path, rows: list[dict[str, Any]]) -> StoredStep:
    path = folder / "arm-s0-0123456789"
    (path / "rollouts").mkdir(parents=True)
    write_rollouts(path / "rollouts" / "000003-000003.parquet", rows)
    append_jsonl(path / "steps.jsonl", [{"step": 3, "len/limit": 7}])
    (step,) = read_steps(CellRecord.at(path), small_spec({"train.epochs": 2}), None)
    return step


def test_by_hand(tmp_path: Path) -> None:
    step = stored(tmp_path, ROWS)
    rollout = step.rollout
    assert (step.step, rollout.max_completion_tokens, step.recorded) == (3, 7, True)
    assert rollout.groups.tolist() == [0, 0, 1]
    assert rollout.rewards.tolist() == [1.0, pytest.approx(math.nan, nan_ok=True), 1.0]
    assert rollout.sequences.lengths.tolist() == [2, 1, 2]
    assert (rollout.correct.tolist(), rollout.truncated.tolist()) == ([True, False, True], [False, True, False])
    assert rollout.sampler_logps.tolist() == [[-1, -2], [-3, 0], [-1, -2]]
    assert step.old_logps.tolist() == [[-1.5, -2.5], [-3, 0], [-1, -2]], "the trainer's where they are recorded"
    assert step.log_ratios.tolist() == [[[0.25, -0.25], [0, 0], [0, 0]], [[0, 0]] * 3]
    assert step.scored.tolist() == [[True, False, False], [False] * 3]


def test_without_token_records(tmp_path: Path) -> None:
    step = stored(tmp_path, [PLAIN, PLAIN | {"sample": 1}])
    assert not step.recorded
    assert not step.scored.any()
    assert torch.equal(step.old_logps, step.rollout.sampler_logps)
    assert not step.log_ratios.any()


@pytest.mark.parametrize("name", ["step", "sample", "logps", "correct", "truncated"])
def test_a_completion_with_a_gap_is_a_damaged_record(tmp_path: Path, name: str) -> None:
    with refuses(DamagedRecordError, "records.column_with_gaps", path="000003-000003.parquet", name=name, n_gaps=1):
        stored(tmp_path, [PLAIN, PLAIN | {name: None}])


@pytest.mark.parametrize(
    ("name", "values"),
    [("token/logp", [-1.5]), ("token/log_ratio", [[0.25, -0.25]]), ("token/log_ratio", [[0.25, -0.25, 0.5], None])],
)
def test_what_was_recorded_of_other_tokens_is_a_damaged_record(tmp_path: Path, name: str, values: Any) -> None:
    with pytest.raises(DamagedRecordError, match=rf"{name} does not match the tokens of its rows"):
        stored(tmp_path, [PLAIN | RECORDED | {name: values}, PLAIN])


@pytest.mark.parametrize("row", [None, {"step": 3}, {"step": 3, "len/limit": None}])
def test_rollouts_of_a_step_without_its_row_are_a_damaged_record(tmp_path: Path, row: dict[str, Any] | None) -> None:
    stored(tmp_path, ROWS)
    (path,) = tmp_path.glob("*/steps.jsonl")
    path.write_text("" if row is None else json.dumps(row) + "\n")
    with refuses(DamagedRecordError, "shelves.replay.limit_missing", path="steps.jsonl", step=3):
        list(read_steps(CellRecord.at(path.parent), small_spec(), None))


def test_files_without_rows_are_no_rollouts(tmp_path: Path) -> None:
    stored(tmp_path, ROWS)
    (path,) = tmp_path.glob("*/rollouts/*")
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).slice(0, 0), path)
    with refuses(RefusedError, "shelves.replay.no_rollouts"):
        list(read_steps(CellRecord.at(path.parents[1]), small_spec(), None))
