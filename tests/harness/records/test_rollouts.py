from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.records.files import DamagedRecordError
from harness.records.rollouts import PER_EPOCH, PER_TOKEN, read_rollouts, spread, write_rollouts
from tests.refusals import refuses

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


def test_a_file_where_the_folder_should_be_is_damage(tmp_path: Path) -> None:
    (tmp_path / "rollouts").write_text("")
    with refuses(DamagedRecordError, "records.rollouts_not_a_folder", folder="rollouts"):
        read_rollouts(tmp_path / "rollouts", ["step"])


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


TOKENS = {
    "step": 1,
    "text": "a b",
    "tokens": [5, 6, 7],
    "token/chars": [1, 1, 1],
    "token/logp": [-1.0, -2.0, -3.0],
    "token/entropy": [0.5, 0.5, 0.5],
    "token/advantage": [1.0, 1.0, 1.0],
    "token/update": [0, 2],
    "token/log_ratio": [[0.0, 0.25, 0.5], None],
    "token/clipped": [[False, False, True], None],
    "token/masked": [[False, False, False], None],
}
NOT_LEARNED_FROM = TOKENS | dict.fromkeys(name for name in TOKENS if name.startswith("token/"))
LIST = pa.list_(pa.int64())


def test_tokens_that_agree_are_read(tmp_path: Path) -> None:
    unseen = {name: [None, None] for name in PER_EPOCH}
    rows = [NOT_LEARNED_FROM, TOKENS, TOKENS | unseen, TOKENS | {"tokens": None}, NOT_LEARNED_FROM]
    write_rollouts(tmp_path / "1.parquet", rows)
    table = read_rollouts(tmp_path, list(TOKENS))
    assert table is not None
    assert table["token/update"].to_pylist() == [None, [0, 2], [0, 2], [0, 2], None]
    assert table["token/clipped"].to_pylist()[1:3] == [[[False, False, True], None], [None, None]]


def test_tokens_that_were_not_recorded_are_null_whatever_their_type(tmp_path: Path) -> None:
    rows = {"step": [1, 2], "text": ["a", "b"], "token/chars": pa.nulls(2), "token/log_ratio": pa.nulls(2)}
    pyarrow.parquet.write_table(pa.table(rows), tmp_path / "1.parquet")
    write_rollouts(tmp_path / "2.parquet", [TOKENS])
    table = read_rollouts(tmp_path, list(TOKENS))
    assert table is not None
    for name in ("tokens", "token/chars", "token/log_ratio", "token/masked"):
        assert table[name].to_pylist() == [None, None, TOKENS[name]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token/chars", [1, 1]),
        ("token/chars", [1, 1, 1, 1]),
        ("token/chars", [1, 1, None]),
        ("token/chars", None),
        ("token/logp", [-1.0, -2.0]),
        ("token/entropy", [0.5] * 4),
        ("token/advantage", None),
        ("token/update", [0, None]),
        ("token/update", [0, 2**32 - 1]),
        ("token/log_ratio", [[0.0, 0.1], None]),
        ("token/log_ratio", [[0.0, 0.1, 0.2, 0.3], None]),
        ("token/log_ratio", [[0.0, 0.1, 0.2], None, None]),
        ("token/log_ratio", [[0.0, 0.1, 0.2]]),
        ("token/clipped", [None, None]),
        ("token/clipped", [[False] * 3, [False] * 3]),
        ("token/masked", [[False] * 2, None]),
        ("token/masked", None),
    ],
)
def test_tokens_that_do_not_agree_are_a_damaged_record(tmp_path: Path, name: str, value: object) -> None:
    write_rollouts(tmp_path / "1.parquet", [NOT_LEARNED_FROM, TOKENS, TOKENS | {name: value}])
    with refuses(DamagedRecordError, "records.tokens_disagree", path="1.parquet") as refused:
        read_rollouts(tmp_path, list(TOKENS))
    assert name in str(refused.value.fields["column"])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("token/update", pa.array([[-1, 0]], LIST)),
        ("token/update", pa.array([[0, 2**40]], LIST)),
        ("token/chars", pa.array([3])),
        ("token/chars", pa.array([["one", "1", "1"]])),
        ("token/logp", pa.array(["-1.0"])),
        ("token/log_ratio", pa.array([[0.0, 0.1]])),
    ],
)
def test_tokens_of_another_type_are_a_damaged_record(tmp_path: Path, name: str, values: pa.Array) -> None:
    write_rollouts(tmp_path / "1.parquet", [TOKENS])
    table = pyarrow.parquet.read_table(tmp_path / "1.parquet")
    table = table.set_column(table.column_names.index(name), name, values)
    pyarrow.parquet.write_table(table, tmp_path / "1.parquet")
    with refuses(DamagedRecordError, "records.column_type", path="1.parquet", name=name):
        read_rollouts(tmp_path, list(TOKENS))
