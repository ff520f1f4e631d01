from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.files import append_jsonl, keep_jsonl
from harness.records.lease import hold_lease
from harness.tracking import Mirror, MirrorError
from harness.tracking.run import MirroredRun
from tests.harness.tracking.conftest import FirstSync
from tests.harness.tracking.helpers import DiskSweep, Reader, train

pytestmark = pytest.mark.slow


def cut(cell: Any, last: int) -> None:
    for name in ("steps.jsonl", "timing.jsonl", "scores.jsonl"):
        keep_jsonl(cell.path / name, lambda row: bool(row["step"] <= last))


def test_first_sync_is_quiet_and_writes_only_below_home(first_sync: FirstSync) -> None:
    assert first_sync.output == ""
    assert list(first_sync.directory.iterdir()) == []
    assert {path.name for path in first_sync.home.iterdir()} == {"first", "mlflow.db", "mlartifacts"}


def test_runs_params_curves_tags_artifacts(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    a, b = sweep.start("a"), sweep.start("b")
    train(a, 1, 3)
    scores = {"step": 2, "task": "sums", "generated_tokens": 9, "metrics": {"pass@1": 0.5, "mean_tokens": None}}
    append_jsonl(a.path / "scores.jsonl", [scores | {"final": False}, scores | {"final": True}])
    a.write_status("done", flags=["nan", "length_blowup"])
    b.write_status("invalid")
    (sweep.path / "report").mkdir()
    (sweep.path / "report" / "report.md").write_text("a verdict")

    assert Mirror(sweep.path, uri).sync() == 8

    (parent,) = reader.parents()
    children = reader.children()
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert (parent.info.status, parent.data.tags["mlflow.note.content"]) == ("FAILED", "Does it help?")
    assert reader.artifacts(parent) == {"report.md"}
    run = children["a-s0"]
    assert run.data.params == {
        "model.source": "builtin:tiny",
        "objective.scale": "null",
        "objective.rule.clip_low": "0.2",
        "eval.k": "[1, 2]",
    }
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert reader.curve("a-s0", "time/total_s") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert reader.curve("a-s0", "eval/sums/pass_at_1") == [(2, 0.5)]
    assert reader.curve("a-s0", "eval/final/sums/pass_at_1") == [(2, 0.5)]
    assert set(run.data.metrics) == {
        "train/reward/mean", "time/total_s", "eval/sums/pass_at_1", "eval/final/sums/pass_at_1",
    }  # fmt: skip
    expected = {"arm": "a", "seed": "0", "hash": a.hash, "state": "done", "flags": "nan, length_blowup"}
    assert expected.items() <= run.data.tags.items()
    assert run.info.end_time == (a.path / "status.json").stat().st_mtime_ns // 1_000_000
    assert reader.artifacts(run) == {"spec.json"}
    assert (run.info.status, children["b-s0"].info.status) == ("FINISHED", "FAILED")


def test_status_follows_the_cell(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    mirror = Mirror(sweep.path, uri)

    def statuses() -> tuple[str, str]:
        mirror.sync()
        return reader.children()["a-s0"].info.status, reader.parents()[0].info.status

    assert statuses() == ("SCHEDULED", "SCHEDULED")
    with hold_lease(cell.path):
        assert statuses() == ("RUNNING", "RUNNING")
        cell.write_status("interrupted")
    assert statuses() == ("KILLED", "KILLED")
    with hold_lease(cell.path):
        assert statuses() == ("RUNNING", "RUNNING")
        cell.write_status("failed")
    assert statuses() == ("FAILED", "FAILED")
    cell.write_status("done")
    assert statuses() == ("FINISHED", "SCHEDULED")  # the other arm waits
    sweep.start("b").write_status("done")
    assert statuses() == ("FINISHED", "FINISHED")
    last_change_ns = max(sweep.cell(arm).path.joinpath("status.json").stat().st_mtime_ns for arm in "ab")
    assert reader.parents()[0].info.end_time == last_change_ns // 1_000_000


@pytest.mark.parametrize("is_restarted", [False, True])
def test_only_new_rows_are_sent(sweep: DiskSweep, uri: str, reader: Reader, is_restarted: bool) -> None:
    cell = sweep.start("a")
    mirror = Mirror(sweep.path, uri)
    train(cell, 1, 3)
    assert mirror.sync() == 6
    if is_restarted:
        mirror = Mirror(sweep.path, uri)
    assert mirror.sync() == 0
    train(cell, 4, 5)
    assert mirror.sync() == 4
    scores = {"step": 5, "final": False, "task": "sums", "generated_tokens": 9, "metrics": {"pass@1": 0.5}}
    append_jsonl(cell.path / "scores.jsonl", [scores])
    assert mirror.sync() == 1
    assert reader.curve("a-s0", "train/reward/mean") == [(s, float(s)) for s in range(1, 6)]
    assert reader.curve("a-s0", "time/total_s") == [(s, 0.5) for s in range(1, 6)]


def test_a_torn_line_waits_for_its_end(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    mirror = Mirror(sweep.path, uri)
    with (cell.path / "steps.jsonl").open("a") as steps:
        steps.write('{"step": 1, "reward/mean": 1.0}\n{"step": 2, "reward/')
        steps.flush()
        assert mirror.sync() == 1
        steps.write('mean": 2.0}\n')
    assert mirror.sync() == 1
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0)]


def test_more_points_than_one_call_takes(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    append_jsonl(cell.path / "steps.jsonl", ({"step": s, "loss": float(s)} for s in range(2500)))
    assert Mirror(sweep.path, uri).sync() == 2500
    assert reader.curve("a-s0", "train/loss") == [(s, float(s)) for s in range(2500)]


def test_a_resume_that_repeats_its_rounds_keeps_the_run(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    mirror = Mirror(sweep.path, uri)
    train(cell, 1, 6)
    mirror.sync()
    run_id = reader.children()["a-s0"].info.run_id
    cut(cell, 3)
    assert mirror.sync() == 0
    train(cell, 4, 5)
    assert mirror.sync() == 0
    train(cell, 6, 8)
    keep_jsonl(cell.path / "timing.jsonl", lambda row: row["step"] <= 3)
    append_jsonl(cell.path / "timing.jsonl", ({"step": s, "total_s": 0.75} for s in range(4, 9)))  # slower this time
    assert mirror.sync() == 4
    assert reader.children()["a-s0"].info.run_id == run_id
    assert reader.curve("a-s0", "train/reward/mean") == [(s, float(s)) for s in range(1, 9)]
    assert reader.curve("a-s0", "time/total_s") == [(s, 0.5 if s <= 6 else 0.75) for s in range(1, 9)]


@pytest.mark.parametrize("n_grown_back", [3, 0], ids=["other rows", "over with fewer rows"])
def test_rows_that_are_recorded_no_longer_are_shown_no_longer(
    sweep: DiskSweep, uri: str, reader: Reader, n_grown_back: int
) -> None:
    cell = sweep.start("a")
    mirror = Mirror(sweep.path, uri)
    train(cell, 1, 6)
    mirror.sync()
    cut(cell, 3)
    train(cell, 4, 3 + n_grown_back, offset=0.5)
    cell.write_status("pending" if n_grown_back else "done")
    mirror.sync()
    expected = [(row["step"], row["reward/mean"]) for row in cell.read_steps()]
    assert reader.curve("a-s0", "train/reward/mean") == expected
    assert len(reader.runs(deleted=True)) == 1


@pytest.mark.parametrize("method", ["log_params", "log_points", "set_tags"])
def test_killed_at_any_call_nothing_is_lost_or_there_twice(
    sweep: DiskSweep, uri: str, reader: Reader, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    cell = sweep.start("a")
    train(cell, 1, 3)

    def die(run: MirroredRun, what: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch, pytest.raises(MirrorError, match="killed"):
        patch.setattr(MirroredRun, method, die)
        Mirror(sweep.path, uri).sync()
    assert Mirror(sweep.path, uri).sync() == 6
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert reader.curve("a-s0", "time/total_s") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert len(reader.children()["a-s0"].data.params) == 4


def test_runs_deleted_by_hand_come_back(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    from mlflow import MlflowClient

    cell = sweep.start("a")
    train(cell, 1, 2)
    mirror = Mirror(sweep.path, uri)
    mirror.sync()
    for run in reader.runs():
        MlflowClient(tracking_uri=uri).delete_run(run.info.run_id)
    train(cell, 3, 3)
    with pytest.raises(MirrorError, match="deleted"):
        mirror.sync()
    assert mirror.sync() == 6
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_deleted_database_is_filled_again(
    sweep: DiskSweep, uri: str, reader: Reader, new_database: Callable[[Path], str]
) -> None:
    train(sweep.start("a"), 1, 3)
    assert Mirror(sweep.path, uri).sync() == 6
    database = sweep.home / "mlflow.db"
    database.unlink()
    new_database(database)
    assert Mirror(sweep.path, uri).sync() == 6
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_two_processes_share_the_runs(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    first, second = Mirror(sweep.path, uri), Mirror(sweep.path, uri)
    train(sweep.start("a"), 1, 2)
    assert first.sync() == 4
    train(sweep.start("b"), 1, 2)
    assert second.sync() == 4
    assert first.sync() == 0
    assert set(reader.children()) == {"a-s0", "b-s0"}
    assert len(reader.parents()) == 1


def test_more_seeds_are_the_same_question_another_arm_is_not(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    mirror = Mirror(sweep.path, uri)
    mirror.sync()
    sweep.ask(n_seeds=2)
    mirror.sync()
    assert len(reader.parents()) == 1
    sweep.ask(arms=("a", "b", "c"))
    mirror.sync()
    assert len(reader.parents()) == 2


def test_cells_of_other_questions_are_left_out(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    sweep.start("c")
    Mirror(sweep.path, uri).sync()
    assert reader.children() == {}


def test_a_changed_report_is_sent_again(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    mirror = Mirror(sweep.path, uri)
    page = sweep.path / "report" / "index.html"
    page.parent.mkdir()
    for text in ("first", "second verdict"):
        page.write_text(text)
        mirror.sync()
        (copy,) = (sweep.home / "mlartifacts").rglob("index.html")
        assert copy.read_text() == text
    page.unlink()
    mirror.sync()


def test_a_sweep_that_was_never_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Mirror(tmp_path / "nothing", "sqlite://").sync()


EVENTS = st.sampled_from(["train", "sync", "cut", "cut, then other rows", "restart"])


@settings(max_examples=12, derandomize=True)
@given(events=st.lists(EVENTS, min_size=3, max_size=9))
def test_whatever_happens_the_curves_equal_the_records(
    events: list[str], tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[Path], str]
) -> None:
    sweep = DiskSweep(tmp_path_factory.mktemp("home"))
    sweep.ask()
    cell = sweep.start("a")
    uri = new_database(sweep.home / "mlflow.db")
    mirror = Mirror(sweep.path, uri)
    offset = 0.0
    for event in [*events, "train"]:
        last = len(cell.read_steps())
        if event == "train":
            train(cell, last + 1, last + 2, offset)
        elif event == "sync":
            mirror.sync()
        elif event == "restart":
            mirror = Mirror(sweep.path, uri)
        else:
            offset += 0.5 if "other" in event else 0.0
            cut(cell, last // 2)
    cell.write_status("done")
    mirror.sync()
    records = [(row["step"], row["reward/mean"]) for row in cell.read_steps()]
    assert Reader(uri).curve("a-s0", "train/reward/mean") == records
