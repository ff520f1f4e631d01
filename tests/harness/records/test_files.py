from __future__ import annotations

import errno
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records import files
from harness.records.files import (
    DamagedRecordError,
    append_jsonl,
    file_name,
    keep_jsonl,
    read_json,
    read_jsonl,
    read_problems,
    typed_rows,
    write_atomic,
    write_folder,
    write_json,
)
from harness.records.rows import Start
from tests.refusals import refuses


def test_json_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"text": "größer", "list": [1, 2.5, None]})
    assert read_json(path) == {"text": "größer", "list": [1, 2.5, None]}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"state": "old"})

    def disk_full(aside: Path) -> None:
        aside.write_text('{"state": "n')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_atomic(path, disk_full)
    with pytest.raises(TypeError):
        write_json(path, {"set": {1}})
    assert read_json(path) == {"state": "old"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_file_or_folder_is_whole_before_it_has_its_name(tmp_path: Path) -> None:
    path, folder = tmp_path / "files" / "a.json", tmp_path / "cache" / "made"
    path.parent.mkdir()

    def write(aside: Path) -> None:
        assert not path.exists()
        assert aside.parent == path.parent, "a rename is atomic only within one file system"
        aside.write_text("{}")

    def fill(aside: Path) -> None:
        (aside / "a").write_text("whole")
        assert not folder.exists()

    write_atomic(path, write)
    write_folder(folder, fill)
    assert (path.read_text(), (folder / "a").read_text()) == ("{}", "whole")
    assert [one.name for at in (path, folder) for one in at.parent.iterdir()] == ["a.json", "made"]


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def write(aside: Path) -> None:
        (aside / "a").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_folder(tmp_path / "made", write)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_another_process_made_meanwhile_stays(tmp_path: Path) -> None:
    def write(aside: Path) -> None:
        (aside / "a").write_text("mine")
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "a").write_text("theirs")

    write_folder(tmp_path / "made", write)
    assert (tmp_path / "made" / "a").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_folder_is_replaced_by_a_whole_one_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a folder of which some files are gone already."""

    def write(aside: Path) -> None:
        (aside / "new").touch()

    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    removed = shutil.rmtree

    def careful(path: Path, ignore_errors: bool) -> None:
        assert path != tmp_path / "made"
        removed(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", careful)
    write_folder(tmp_path / "made", write, replaces=True)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_who_reads_meanwhile_reads_the_old_file_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"state": "old"})
    with path.open(encoding="utf-8") as reader:
        write_json(path, {"state": "new"})
        assert json.load(reader) == {"state": "old"}
    assert read_json(path) == {"state": "new"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "a.json", {"x": value, "list": [{"y": value}], "tuple": (value, 1.0)})
    assert read_json(tmp_path / "a.json") == {"x": None, "list": [{"y": None}], "tuple": [None, 1.0]}
    append_jsonl(tmp_path / "a.jsonl", [{"loss": value, "step": 1}])
    assert read_jsonl(tmp_path / "a.jsonl") == [{"loss": None, "step": 1}]


def test_rows_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read_jsonl(path) == []
    append_jsonl(path, [{"step": 1}, {"step": 2}])
    append_jsonl(path, [])
    append_jsonl(path, [{"step": 3, "text": "line\nbreak\u2028"}])
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}, {"step": 3, "text": "line\nbreak\u2028"}]


rows = st.lists(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3), max_size=4)


@settings(max_examples=40)
@given(rows=rows, cut=st.integers(min_value=0))
def test_a_file_torn_anywhere_gives_the_rows_that_were_complete(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "a.jsonl"
    append_jsonl(path, rows)
    whole = path.read_bytes()
    torn = whole[: cut % (len(whole) + 1)]
    path.write_bytes(torn)
    assert read_jsonl(path) == rows[: torn.count(b"\n")]


def test_cutting_removes_rows_and_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_jsonl(path, [{"step": step} for step in range(5)])
    with path.open("a") as handle:
        handle.write('{"step": 5, "rew')
    keep_jsonl(path, lambda row: row["step"] <= 2)
    assert path.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'
    # What is appended now starts a line of its own.
    append_jsonl(path, [{"step": 3}])
    assert read_jsonl(path)[-1] == {"step": 3}
    with path.open("a") as handle:
        handle.write('{"st')
    keep_jsonl(path, lambda row: True)
    assert path.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_cutting_nothing_leaves_the_file_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    append_jsonl(path, [{"step": 1, "text": "ä", "x": 1e-7}])
    monkeypatch.setattr(files, "write_atomic", lambda *_: pytest.fail("was written"))
    keep_jsonl(path, lambda row: True)
    keep_jsonl(tmp_path / "none.jsonl", lambda row: False)
    assert not (tmp_path / "none.jsonl").exists()
    assert json.loads(path.read_text())["x"] == 1e-7


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"name": ')
    with refuses(DamagedRecordError, "records.not_json", path="sweep.json"):
        read_json(tmp_path / "sweep.json")


@pytest.mark.parametrize("line", [b"no JSON", b"\0\0\0", b"[1]", b"1", b'{"a": 1}, {"a": 2}', b'{"a": "\xff"}', b" "])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 0}\n\n' + line + b'\n{"a": 3}\n')
    with refuses(DamagedRecordError, "records.rows_damaged", path="a.jsonl") as refused:
        read_jsonl(path)
    assert "line 3" in str(refused.value.fields["fault"])
    path.write_bytes(b'{"a": 0}\n\n' + line)  # torn
    assert read_jsonl(path) == [{"a": 0}]


class Sample(TypedDict):
    text: str
    extracted: str | None


@pytest.mark.parametrize("row", [{"text": "a"}, {"extracted": None}, {"text": 1, "extracted": None}])
def test_a_row_without_its_fields_is_named(row: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"text": "a", "extracted": None, "more": 1}
    assert typed_rows(Path("a.jsonl"), [whole], Sample) == [whole]
    with refuses(DamagedRecordError, "records.row_lacks_fields", path="a.jsonl", number=2):
        typed_rows(Path("a.jsonl"), [whole, row], Sample)


def test_an_optional_field_is_absent_or_of_its_type() -> None:
    start: dict[str, Any] = {"epoch": 1, "from_step": 0}
    whole = [start, start | {"time": "now", "registered": None, "owner": {"host": "h", "pid": 1}}]
    assert typed_rows(Path("starts.jsonl"), whole, Start) == whole
    for wrong in ({"time": 3}, {"time": None}, {"owner": "me"}, {"registered": 4}):
        with refuses(DamagedRecordError, "records.row_lacks_fields", number=3, lacking=next(iter(wrong))):
            typed_rows(Path("starts.jsonl"), [*whole, start | wrong], Start)


def test_a_long_name_is_cut_and_stays_distinct() -> None:
    assert file_name("my tasks/a.yaml") == "my_tasks_a.yaml"
    assert file_name("ä" * 50) == "ä" * 50
    long = [file_name(begin * 300 + end) for begin in "xä" for end in "ab"]
    assert len(set(long)) == 4
    assert all(len(name.encode()) <= 100 for name in long)


def test_a_byte_order_mark_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 0}\n{"a": 1}\n')
    with refuses(DamagedRecordError, "records.rows_damaged", path="a.jsonl"):
        read_jsonl(path)


def test_a_prompt_is_a_text_or_the_messages_of_a_chat(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    row = {"task": "t", "split": "test", "problem_id": "p", "answer": ""}
    append_jsonl(path, [row | {"prompt": "1+1="}, row | {"problem_id": "q", "prompt": [{"role": "user"}]}])
    assert [one["prompt"] for one in read_problems(path)] == ["1+1=", [{"role": "user"}]]
    append_jsonl(path, [row | {"problem_id": "r", "prompt": 3}])
    with refuses(DamagedRecordError, "records.row_lacks_fields", number=3, lacking="prompt"):
        read_problems(path)
