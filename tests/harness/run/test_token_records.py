"""What a cell keeps of single tokens. That a resumed cell keeps the same bytes is in test_cell.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from harness.records import CellRecord
from tests.harness.run.small import trained

pytestmark = pytest.mark.slow

COLUMNS = ("step", "text", "tokens", "logps", "reward", "token/chars", "token/logp", "token/advantage", "token/update")
SHORT = {"eval.every": 0, "eval.problems": 2, "eval.samples": 1, "eval.k": [1], "train.steps": 2}


def cell_with(folder: Path, settings: dict[str, Any]) -> tuple[CellRecord, list[dict[str, Any]]]:
    cell = trained(folder, SHORT | settings)
    table = cell.read_rollouts(COLUMNS)
    assert table is not None
    return cell, table.to_pylist()


def test_every_completion_has_its_tokens(tmp_path: Path) -> None:
    """The built-in model writes a character a token, and nothing at its end."""
    _, rows = cell_with(tmp_path / "cell", {"train.epochs": 2})
    assert len(rows) == 2 * 16
    for row in rows:
        assert len(row["token/chars"]) == len(row["token/logp"]) == len(row["token/advantage"]) == len(row["tokens"])
        assert sum(row["token/chars"]) == len(row["text"])
        assert row["token/update"] == [0, 1]
        np.testing.assert_allclose(row["token/logp"], row["logps"], atol=1e-3)


def test_completions_that_were_dropped_have_none(tmp_path: Path) -> None:
    """Which rows were left to learn from is known by their place: the advantages belong to the rewards beside them."""
    cell, rows = cell_with(tmp_path / "cell", {"objective.zero_std": "drop"})
    assert (
        sum(step["rows_dropped"] for step in cell.read_steps()) == sum(row["token/chars"] is None for row in rows) > 0
    )
    for start in range(0, len(rows), 4):
        group = rows[start : start + 4]
        alike = len({row["reward"] for row in group}) == 1
        assert [row["token/advantage"] is None for row in group] == [alike] * 4
        for row in group:
            best = row["reward"] == max(other["reward"] for other in group)
            assert alike or (row["token/advantage"][0] > 0) == best


def test_off_nothing_is_kept_and_the_numbers_are_the_same(tmp_path: Path) -> None:
    on, _ = cell_with(tmp_path / "on", {})
    off, rows = cell_with(tmp_path / "off", {"train.token_records_max_tokens": 0})
    assert all(row["token/chars"] is None and row["token/logp"] is None for row in rows)
    (path, *_) = sorted(off.rollouts.iterdir())
    assert not any(name.startswith("token/") for name in pyarrow.parquet.read_schema(path).names)
    assert on.digest == off.digest
    assert on.read_steps() == off.read_steps()
