from __future__ import annotations

from pathlib import Path

import pytest

from harness.records import CellRecord, cell_directory_name
from harness.records.cell import is_cell_directory_name
from harness.records.files import DamagedRecordError, append_jsonl, write_json
from harness.records.lease import hold_lease
from harness.records.rollouts import file_of
from harness.records.rows import CellState
from tests.refusals import refuses

HASH = "0123456789abcdef0123"


@pytest.fixture
def cell(tmp_path: Path) -> CellRecord:
    path = tmp_path / cell_directory_name("arm", 3, HASH)
    path.mkdir()
    return CellRecord(path, "arm", 3, HASH)


@pytest.mark.parametrize("arm", ["arm", "a-s1-b", "clip_high=0.28+beta=0", "no-std", "a-s0-0123456789"])
def test_a_folders_name_gives_the_cell_back(arm: str) -> None:
    name = cell_directory_name(arm, 12, HASH)
    assert is_cell_directory_name(name)
    cell = CellRecord.at(Path("cells") / name)
    assert (cell.arm, cell.seed, cell.hash) == (arm, 12, HASH[:10])


@pytest.mark.parametrize(
    "name", [".DS_Store", "arm-s3", "arm-s3-0123", "arm-sx-0123456789", "-s3-0123456789", "arm-s3-0123456789.bak"]
)
def test_any_other_name_is_no_cell(name: str) -> None:
    assert not is_cell_directory_name(name)
    with pytest.raises(ValueError):
        CellRecord.at(Path("cells") / name)


def test_a_cell_that_never_started_is_pending(tmp_path: Path) -> None:
    cell = CellRecord.at(tmp_path / "cells" / "arm-s0-0123456789")
    assert cell.state == "pending"
    assert (cell.step, cell.steps, cell.digest, cell.reason, cell.flags) == (0, None, None, None, [])
    assert (cell.read_steps(), cell.read_scores(), cell.read_timing()) == ([], [], [])
    assert cell.read_evals() is None


def test_a_cell_that_is_not_done_has_generated_what_its_last_step_says(cell: CellRecord) -> None:
    assert cell.generated_tokens == 0
    steps = cell.path / "steps.jsonl"
    long = "x" * 200_000
    append_jsonl(steps, [{"step": step, "generated_tokens": 10 * step, "more": long} for step in (1, 2)])
    assert cell.generated_tokens == 20
    steps.write_text(steps.read_text() + '{"step": 3, "generated_tok')
    cell.write_status("interrupted")
    assert cell.generated_tokens == 20, "a torn line is none"
    cell.write_status("done", generated_tokens=15)
    assert cell.generated_tokens == 15


@pytest.mark.parametrize(
    ("row", "code"),
    [('{"step": 1}', "no_generated_tokens"), ("[1]", "last_row_not_an_object"), ("{]", "last_row_damaged")],
)
def test_a_last_step_that_says_something_else_is_damaged(cell: CellRecord, row: str, code: str) -> None:
    (cell.path / "steps.jsonl").write_text(row + "\n")
    with refuses(DamagedRecordError, f"records.{code}", path="steps.jsonl"):
        _ = cell.generated_tokens


def test_status_keeps_what_is_not_given_except_the_reason(cell: CellRecord) -> None:
    cell.write_status("interrupted", reason="no room", steps=9, flags=["nan"])
    assert (cell.state, cell.reason) == ("interrupted", "no room")
    cell.write_status("done", digest="ab", step=9, generated_tokens=70)
    assert (cell.state, cell.reason, cell.steps, cell.flags) == ("done", None, 9, ["nan"])
    assert (cell.digest, cell.step, cell.generated_tokens) == ("ab", 9, 70)


@pytest.mark.parametrize(
    "status",
    ['{"schema": 4}', '{"schema": 4, "state": "finished"}', '{"schema": 4, "state": "done", "step": null}', "[]"],
)
def test_a_damaged_status_is_named(cell: CellRecord, status: str) -> None:
    (cell.path / "status.json").write_text(status)
    assert (cell.state, cell.is_done, cell.lacks) == ("damaged", False, "training")
    assert cell.reason is not None and "status.json" in cell.reason
    with pytest.raises(DamagedRecordError, match=r"status\.json"):
        cell.require_readable()


@pytest.mark.parametrize("schema", [3, 99])
def test_a_cell_of_another_version_is_damaged(cell: CellRecord, schema: int) -> None:
    write_json(cell.path / "status.json", {"schema": schema, "state": "done"})
    assert (cell.state, cell.is_done) == ("damaged", False)
    cell.write_status("interrupted")
    assert cell.state == "damaged", "writing to it makes it no other"


def test_rollouts_that_a_later_start_made_anew_are_left_out(cell: CellRecord) -> None:
    """Also those of one that was stopped, taken for dead, and wrote them when it woke up."""
    append_jsonl(cell.path / "starts.jsonl", [{"epoch": 1, "from_step": 0}, {"epoch": 2, "from_step": 4}])
    cell.rollouts.mkdir()
    for first, last, epoch in ((1, 4, 1), (5, 8, 1), (5, 6, 2), (7, 8, 2)):
        (cell.rollouts / file_of(first, last, epoch)).touch()
    names = [path.name for path in cell.rollout_files()]
    assert names == [file_of(1, 4, 1), file_of(5, 6, 2), file_of(7, 8, 2)]


def test_what_a_cell_must_have_is_named_where_it_is_missing(cell: CellRecord) -> None:
    with refuses(DamagedRecordError, "records.file_missing", path="spec.json"):
        _ = cell.spec
    (cell.path / "spec.json").write_text("[1]")
    with refuses(DamagedRecordError, "records.not_an_object", path="spec.json"):
        _ = cell.spec
    with refuses(DamagedRecordError, "records.file_missing", path="starts.jsonl"):
        _ = cell.provenance


def test_the_provenance_is_that_of_the_last_start(cell: CellRecord) -> None:
    first = {"epoch": 1, "from_step": 0, "owner": {"pid": 1}, "time": "now", "torch": "1"}
    append_jsonl(cell.path / "starts.jsonl", [first])
    assert cell.provenance == {"torch": "1"}
    append_jsonl(cell.path / "starts.jsonl", [first | {"epoch": 2, "from_step": 3, "torch": "2"}])
    assert cell.provenance == {"torch": "2"}
    assert [(start["epoch"], start["from_step"]) for start in cell.read_starts()] == [(1, 0), (2, 3)]


def test_rows_of_a_writer_that_was_taken_for_dead_do_not_count(cell: CellRecord) -> None:
    """It wakes up late and writes steps that a later start has begun anew."""
    append_jsonl(cell.path / "starts.jsonl", [{"epoch": 1, "from_step": 0}, {"epoch": 2, "from_step": 2}])
    written = [(1, 1), (1, 2), (2, 3), (1, 3), (1, 4), (2, 4)]
    append_jsonl(cell.path / "steps.jsonl", [{"step": step, "epoch": epoch, "by": epoch} for epoch, step in written])
    assert cell.read_steps() == [{"step": step, "by": by} for step, by in ((1, 1), (2, 1), (3, 2), (4, 2))]
    assert cell.read_step_columns().to_pylist() == cell.read_steps()


def test_times_are_those_of_the_starts_and_what_each_step_took(cell: CellRecord) -> None:
    starts = [
        {"epoch": 1, "from_step": 0, "time": "1970-01-01T00:01:40Z"},
        {"epoch": 2, "from_step": 2, "time": "1970-01-01T01:00:00Z"},
    ]
    append_jsonl(cell.path / "starts.jsonl", starts)
    took = [(1, 1, "total_s", 5.0), (1, 2, "total_s", 6.0), (1, 2, "eval_s", 0.5), (1, 3, "total_s", 7.0)]
    took += [(2, 3, "total_s", 8.0), (2, 3, "eval_s", 1.0)]
    rows = [{"epoch": epoch, "step": step, key: seconds} for epoch, step, key, seconds in took]
    append_jsonl(cell.path / "timing.jsonl", rows)
    before, after = {(1, False): 105.0, (2, False): 111.0, (2, True): 111.5}, {(3, False): 3608.0, (3, True): 3609.0}
    assert cell.read_ends() == before | after
    assert cell.read_begins() == [100.0, 3600.0]
    append_jsonl(cell.path / "starts.jsonl", [{"epoch": 3, "from_step": 3, "time": "noon"}])
    with refuses(DamagedRecordError, "records.start_damaged", path="starts.jsonl"):
        cell.read_ends()


def test_steps_of_a_cell_that_is_not_done_may_have_a_torn_end(cell: CellRecord) -> None:
    append_jsonl(cell.path / "steps.jsonl", [{"step": step} for step in (1, 2, 3)])
    with (cell.path / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    states: list[CellState] = ["pending", "interrupted", "failed"]
    for state in states:
        cell.write_status(state, step=4, steps=9)
        assert len(cell.read_steps()) == len(cell.read_step_columns()) == 3
    cell.write_status("done", step=4, steps=4)
    for read in (cell.read_steps, cell.read_step_columns):
        with refuses(DamagedRecordError, "records.steps_missing", path="steps.jsonl", n_rows=3, n_steps=4):
            read()
    # One that diverged has the steps to where it was scored.
    cell.write_status("done", step=3, steps=9, flags=["nan"])
    assert cell.read_steps() == cell.read_step_columns().to_pylist() == [{"step": step} for step in (1, 2, 3)]


def test_running_means_a_live_lease(cell: CellRecord) -> None:
    cell.write_status("pending")
    with hold_lease(cell.path):
        assert cell.read_status()["state"] == "running"
    assert cell.read_status()["state"] == "pending"
    cell.write_status("interrupted", reason="killed")
    with hold_lease(cell.path):
        assert (cell.state, cell.reason) == ("running", None)
    assert (cell.state, cell.reason) == ("interrupted", "killed")


def test_samples_are_read_by_column_and_row(cell: CellRecord) -> None:
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.parquet

    rows = {"task": ["a", "b", "a"], "text": ["x", "y", "z"], "final": [True, True, False]}
    pyarrow.parquet.write_table(pyarrow.table(rows), cell.path / "evals.parquet")
    whole = cell.read_evals()
    assert whole is not None and whole.to_pydict() == rows
    some = cell.read_evals(["text", "not recorded yet"], pc.field("final") & (pc.field("task") == "a"))
    assert some is not None and some.to_pydict() == {"text": ["x"]}
