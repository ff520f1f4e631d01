from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records.files import DamagedRecordError
from harness.records.rollouts import read_rollouts, write_rollouts
from harness.records.tables import read_parquet

ROWS = [{"step": step, "text": "some text" * 9} for step in range(3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "000001-000003.parquet"
    write_rollouts(path, ROWS)
    return path


def test_columns_that_were_recorded_are_read(path: Path) -> None:
    assert read_parquet(path).to_pylist() == ROWS
    assert read_parquet(path, ["step", "reward"]).to_pydict() == {"step": [0, 1, 2]}


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def hole_in_the_data(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:20] + b"\xff" * 60 + content[80:])


@pytest.mark.parametrize("damage", [cut_in_half, empty, hole_in_the_data])
def test_a_damaged_file_is_named(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    reads: list[Callable[[], object]] = [
        lambda: read_parquet(path),
        lambda: read_rollouts(path.parent, ["step", "text"]),
    ]
    for read in reads:
        with pytest.raises(DamagedRecordError, match=r"000001-000003\.parquet: is damaged"):
            read()


def test_what_the_system_says_is_no_damage(path: Path) -> None:
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_parquet(path)


@pytest.mark.parametrize(
    ("gap", "says"),
    [
        ({"step": None}, "lacks step in 1 places"),
        ({"logps": None}, "lacks logps in 1 places"),
        ({"logps": [-1.0, None]}, "lacks logps in 1 places"),
    ],
)
def test_gaps_are_named(tmp_path: Path, gap: dict[str, Any], says: str) -> None:
    whole = {"step": 1, "logps": [-1.0, -2.0]}
    write_rollouts(tmp_path / "1.parquet", [whole, whole | gap])
    assert read_rollouts(tmp_path, ["step", "logps"]) is not None
    with pytest.raises(DamagedRecordError, match=rf"1\.parquet: {says}"):
        read_rollouts(tmp_path, ["step", "logps"], needed=["step", "logps"])
