from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records.files import DamagedRecordError
from harness.records.rollouts import read_rollouts, write_rollouts
from harness.records.tables import read_parquet
from tests.refusals import refuses

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
        with refuses(DamagedRecordError, "records.table_damaged", path="000001-000003.parquet"):
            read()


def test_what_the_system_says_is_no_damage(path: Path) -> None:
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_parquet(path)


@pytest.mark.parametrize(
    ("gap", "name"), [({"step": None}, "step"), ({"logps": None}, "logps"), ({"logps": [-1.0, None]}, "logps")]
)
def test_gaps_are_named(tmp_path: Path, gap: dict[str, Any], name: str) -> None:
    whole = {"step": 1, "logps": [-1.0, -2.0]}
    write_rollouts(tmp_path / "1.parquet", [whole, whole | gap])
    assert read_rollouts(tmp_path, ["step", "logps"]) is not None
    with refuses(DamagedRecordError, "records.column_with_gaps", path="1.parquet", name=name, n_gaps=1):
        read_rollouts(tmp_path, ["step", "logps"], needed=["step", "logps"])


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed_or_changes_nothing(
    where: float, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The file keeps its size, and without checksums other text would be read. Its end, which describes the columns,
    has none."""
    path = tmp_path_factory.mktemp("flipped") / "000001-000003.parquet"
    write_rollouts(path, ROWS)
    content = bytearray(path.read_bytes())
    n_data = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4 + int(where * (n_data - 4))] ^= 1 << bit
    path.write_bytes(content)
    try:
        assert read_parquet(path).to_pylist() == ROWS
    except DamagedRecordError as error:
        assert path.name in str(error)
