from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.records.rollouts import PER_EPOCH, PER_TOKEN, read_rollouts, write_rollouts

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
