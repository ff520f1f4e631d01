from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.records.rollouts import PER_EPOCH, PER_TOKEN, read_rollouts, spread, write_rollouts

PLAIN = {"step": 1, "text": "1", "reward": None}
RECORDED = {
    "step": 2,
    "text": "12",
    "reward": 1.0,
    "token/chars": [1, 1],
    "token/logp": [-1.5, -0.5],
    "token/log_ratio": [[0.25, 0.0], None],
    "token/clipped": [[True, False], None],
}


def test_files_are_read_in_their_order_and_what_is_missing_is_null(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "000002-000002.parquet", [PLAIN | {"step": 2}, RECORDED])
    write_rollouts(tmp_path / "000001-000001.parquet", [PLAIN])
    table = read_rollouts(tmp_path, ["step", "reward", "token/logp", "token/log_ratio", "token/masked"])
    assert table is not None
    assert table.column_names == ["step", "reward", "token/logp", "token/log_ratio", "token/masked"]
    assert table["step"].to_pylist() == [1, 2, 2]
    assert table["reward"].to_pylist() == [None, None, 1.0]
    assert table["token/logp"].to_pylist() == [None, None, [-1.5, -0.5]]
    assert table["token/log_ratio"].to_pylist() == [None, None, [[0.25, 0.0], None]]
    assert table["token/masked"].to_pylist() == [None] * 3


def test_no_rows_are_none(tmp_path: Path) -> None:
    assert read_rollouts(tmp_path / "absent", ["step"]) is None


@pytest.mark.parametrize("name", [*PER_TOKEN, *PER_EPOCH])
def test_tokens_have_their_types_even_where_all_are_null(tmp_path: Path, name: str) -> None:
    path = tmp_path / "000001-000001.parquet"
    write_rollouts(path, [PLAIN | {name: None}])
    kind = pyarrow.parquet.read_schema(path).field(name).type
    inner = kind.value_type.value_type if name in PER_EPOCH else kind.value_type
    assert inner in (pa.float32(), pa.bool_())


@pytest.mark.parametrize(("most", "chosen"), [(2, [0, 9]), (3, [0, 4, 9]), (10, [*range(10)]), (99, [*range(10)])])
def test_files_are_spread_over_training(most: int, chosen: list[int]) -> None:
    paths = [Path(str(number)) for number in range(10)]
    assert spread(paths, most) == [paths[number] for number in chosen]


def test_of_many_files_some_are_read(tmp_path: Path) -> None:
    for step in range(1, 6):
        write_rollouts(tmp_path / f"{step:06d}-{step:06d}.parquet", [{"step": step, "text": "a"}])
    table = read_rollouts(tmp_path, ["step", "tokens"], most_files=2)
    assert table is not None
    assert table.to_pylist() == [{"step": 1, "tokens": None}, {"step": 5, "tokens": None}]
