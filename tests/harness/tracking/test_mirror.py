from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.files import append_jsonl, keep_jsonl
from harness.records.lease import hold_lease
from harness.tracking import Mirror, MirrorError
from harness.tracking import run as mirrored_run
from harness.tracking.curves import Curves
from harness.tracking.run import MirroredRun
from harness.tracking.store import add_points
from tests.harness.tracking.conftest import FirstSync
from tests.harness.tracking.helpers import FIRST_S, DiskSweep, Reader, begin, evaluate, train

pytestmark = pytest.mark.slow


def cut(cell: Any, last: int) -> None:
    for name in ("steps.jsonl", "timing.jsonl", "scores.jsonl"):
        keep_jsonl(cell.path / name, lambda row: bool(row["step"] <= last))


def test_first_sync_is_quiet_and_writes_only_below_home(first_sync: FirstSync) -> None:
    assert first_sync.output == ""
    assert list(first_sync.directory.iterdir()) == []
    assert {path.name for path in first_sync.home.iterdir()} == {
        *("first", "mlflow.db", "mlartifacts", ".mlflow.lock"),
    }


def test_runs_params_curves_tags_artifacts(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    a, b = sweep.start("a"), sweep.start("b")
    train(a, 1, 3)
    evaluate(a, 2)
    evaluate(a, 3, final=True)
    a.write_status("done", flags=["nan", "length_blowup"])
    b.write_status("invalid")

    assert Mirror(sweep.path, uri).sync() == 6 + 5

    (parent,) = reader.parents()
    children = reader.children()
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert parent.info.status == "FAILED"
    run = children["a-s0"]
    assert run.data.params == {
        "model.source": "builtin:tiny",
        "task.train": "sums",
        "objective.scale": "null",
        "objective.rule.clip_low": "0.2",
        "eval.k": "[1, 2]",
    }
    # The parent has the question, with what all arms share and what they differ in, but not the seed.
    assert run.data.params.items() - parent.data.params.items() == {("objective.scale", "null")}
    assert parent.data.params["question.margin_pp"] == "1.0"
    assert parent.data.params["varied.b.objective.scale"] == "none"
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert reader.curve("a-s0", "time/total_s") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert reader.curve("a-s0", "eval/sums/pass_at_1") == [(2, 0.5), (3, 0.5)]
    assert reader.curve("a-s0", "eval/final/sums/pass_at_1") == [(3, 0.5)]
    assert set(run.data.metrics) == {
        *("train/reward/mean", "time/total_s", "time/eval_s", "eval/sums/pass_at_1", "eval/final/sums/pass_at_1"),
    }
    expected = {"arm": "a", "seed": "0", "hash": a.hash, "state": "done", "flags": "nan, length_blowup"}
    expected |= {"mlflow.source.name": "bench run std_norm", "mlflow.source.git.commit": "c0ffee"}
    assert expected.items() <= run.data.tags.items()
    assert run.info.user_id == parent.info.user_id == getpass.getuser()
    assert [(one.dataset.name, one.dataset.digest) for one in run.inputs.dataset_inputs] == [
        ("sums train", "0123"),
        ("arithmetic test", "generated"),
    ]
    assert reader.artifacts(run) == {"spec.json"}
    assert (run.info.status, children["b-s0"].info.status) == ("FINISHED", "FAILED")


def test_time_is_that_of_the_records(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    train(cell, 1, 2)
    evaluate(cell, 2)
    train(cell, 3, 4)
    cut(cell, 3)
    begin(cell, from_step=3)  # an hour later
    train(cell, 4, 4)
    evaluate(cell, 4, final=True)
    cell.write_status("done")
    Mirror(sweep.path, uri).sync()
    assert reader.timed_curve("a-s0", "train/reward/mean") == [
        (1, 1.0, 0.5),
        (2, 2.0, 1.0),
        (3, 3.0, 3.5),
        (4, 4.0, 3600.5),
    ]
    assert reader.timed_curve("a-s0", "eval/sums/pass_at_1") == [(2, 0.5, 3.0), (4, 0.5, 3602.5)]
    run = reader.children()["a-s0"]
    assert (run.info.start_time, run.info.end_time) == (1000 * FIRST_S, 1000 * (FIRST_S + 3602.5))


def test_each_curve_begins_with_the_model_before_its_training(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell, other = sweep.start("a"), sweep.start("b")
    append_jsonl(cell.path / "steps.jsonl", [{"step": 1, "generated_tokens": 70, "epoch": 1}])
    for one in (cell, other):
        evaluate(one, 1, final=True)
        one.write_status("done")
    mirror = Mirror(sweep.path, uri)
    mirror.sync()
    row = {"step": 0, "final": False, "task": "sums"}
    sweep.change(base_scores=[row | {"metrics": {"pass@1": 0.25}}])
    assert mirror.sync() == 2
    assert reader.timed_curve("a-s0", "eval/sums/pass_at_1") == [(0, 0.25, 0.0), (1, 0.5, 2.0)]
    assert reader.curve("a-s0", "train/generated_tokens") == [(0, 0.0), (1, 70.0)]
    # Starts that differ.
    starts = {arm: [row | {"metrics": {"pass@1": score}}] for arm, score in (("a", 0.25), ("b", 0.125))}
    sweep.change(ablate=["model.dtype"], base_scores_by_arm=starts)
    Mirror(sweep.path, uri).sync()
    assert reader.timed_curve("b-s0", "eval/sums/pass_at_1") == [(0, 0.125, 0.0), (1, 0.5, 2.0)]


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
    assert reader.parents()[0].info.end_time == last_change_ns // 1_000_000  # no step says when it ended


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
    evaluate(cell, 5)
    assert mirror.sync() == 2
    assert reader.curve("a-s0", "train/reward/mean") == [(s, float(s)) for s in range(1, 6)]
    assert reader.curve("a-s0", "time/total_s") == [(s, 0.5) for s in range(1, 6)]


def test_a_torn_line_waits_for_its_end_and_a_score_for_its_time(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    mirror = Mirror(sweep.path, uri)
    with (cell.path / "steps.jsonl").open("a") as steps:
        steps.write('{"step": 1, "epoch": 1, "reward/mean": 1.0}\n{"step": 2, "epoch": 1, "reward/')
        steps.flush()
        assert mirror.sync() == 1
        steps.write('mean": 2.0}\n')
    assert mirror.sync() == 1
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0)]
    score = {"step": 1, "final": False, "task": "sums", "generated_tokens": 9, "metrics": {"pass@1": 0.5}, "epoch": 1}
    append_jsonl(cell.path / "timing.jsonl", [{"step": 1, "total_s": 0.5, "epoch": 1}])
    append_jsonl(cell.scores, [score])
    assert mirror.sync() == 1
    append_jsonl(cell.path / "timing.jsonl", [{"step": 1, "eval_s": 2.0, "epoch": 1}])
    assert mirror.sync() == 2
    assert reader.timed_curve("a-s0", "eval/sums/pass_at_1") == [(1, 0.5, 2.5)]


def test_more_points_than_one_call_takes(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    cell = sweep.start("a")
    append_jsonl(cell.path / "steps.jsonl", ({"step": s, "loss": float(s), "epoch": 1} for s in range(1, 2501)))
    assert Mirror(sweep.path, uri).sync() == 2500
    assert reader.curve("a-s0", "train/loss") == [(s, float(s)) for s in range(1, 2501)]


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
    append_jsonl(cell.path / "timing.jsonl", ({"step": s, "total_s": 0.75, "epoch": 1} for s in range(4, 9)))  # slower
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


@pytest.mark.parametrize("method", ["log_params", "add_points", "set_tags"])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_killed_at_any_call_nothing_is_lost_or_there_twice(
    sweep: DiskSweep, uri: str, reader: Reader, monkeypatch: pytest.MonkeyPatch, method: str, is_done: bool
) -> None:
    cell = sweep.start("a")
    train(cell, 1, 3)
    with killed_at(method, monkeypatch, is_done):
        Mirror(sweep.path, uri).sync()
    assert Mirror(sweep.path, uri).sync() == 6
    assert reader.curve("a-s0", "train/reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert reader.curve("a-s0", "time/total_s") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert len(reader.children()["a-s0"].data.params) == 5
    assert reader.runs(deleted=True) == []


@contextmanager
def killed_at(method: str, monkeypatch: pytest.MonkeyPatch, is_done: bool) -> Iterator[None]:
    """As a cell's run calls a method or has its points written, before or after that is done."""
    if method == "add_points":
        with monkeypatch.context() as patch, pytest.raises(MirrorError):
            patch.setattr(mirrored_run, method, partial(points_then_killed, is_done))
            yield
        return
    original = getattr(MirroredRun, method)

    def die(run: MirroredRun, what: object) -> None:
        is_of_cell = "bench.cell" in run.tags
        if is_done or not is_of_cell:
            original(run, what)
        if is_of_cell:
            raise OSError("killed")

    with monkeypatch.context() as patch, pytest.raises(MirrorError):
        patch.setattr(MirroredRun, method, die)
        yield


def test_rows_made_anew_after_a_kill_are_not_there_twice(
    sweep: DiskSweep, uri: str, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the same, but their time is another: MLflow would keep both."""
    cell = sweep.start("a")
    train(cell, 1, 3)
    with killed_at("add_points", monkeypatch, is_done=True):
        Mirror(sweep.path, uri).sync()
    cut(cell, 1)
    begin(cell, from_step=1)
    train(cell, 2, 3)
    Mirror(sweep.path, uri).sync()
    assert reader.timed_curve("a-s0", "train/reward/mean") == [(1, 1.0, 0.5), (2, 2.0, 3600.5), (3, 3.0, 3601.0)]


def test_runs_deleted_by_hand_come_back(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    from mlflow import MlflowClient

    cell = sweep.start("a")
    train(cell, 1, 2)
    mirror = Mirror(sweep.path, uri)
    mirror.sync()
    for run in reader.runs():
        MlflowClient(tracking_uri=uri).delete_run(run.info.run_id)
    train(cell, 3, 3)
    with pytest.raises(MirrorError):
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
    sweep.start("c")
    mirror = Mirror(sweep.path, uri)
    mirror.sync()
    assert reader.children() == {}, "a cell of another question"
    sweep.ask(n_seeds=2)
    mirror.sync()
    assert len(reader.parents()) == 1
    sweep.ask(arms=("a", "b", "c"))
    mirror.sync()
    assert len(reader.parents()) == 2


def test_what_ran_under_another_question_ends(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    """Its process was stopped before it could say so, and the sweep never looks at these cells again."""
    cell = sweep.start("a")
    mirror = Mirror(sweep.path, uri)
    with hold_lease(cell.path):
        mirror.sync()
    cell.write_status("interrupted")
    sweep.ask(arms=("b", "c"))
    sweep.start("b")
    mirror.sync()
    assert {run.info.status for run in reader.runs()} == {"KILLED", "SCHEDULED"}
    assert reader.children()["a-s0"].info.status == "KILLED"


def test_the_parent_carries_the_answer(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    mirror = Mirror(sweep.path, uri)
    sweep.report()
    assert mirror.sync() == 7
    assert mirror.sync() == Mirror(sweep.path, uri).sync() == 0
    sweep.report(verdict="undecided", difference_pp=-1.5)
    assert mirror.sync() == 2
    (parent,) = reader.parents()
    assert parent.data.metrics == {
        **{"result/a/mean_pp": 50.0, "result/b/mean_pp": 48.5, "result/b/difference_pp": -1.5},
        **{"result/b/low_pp": -3.0, "result/b/high_pp": -1.0, "result/b/p": 0.01, "result/b/p_holm": 0.02},
    }
    assert parent.data.tags["verdict.b"] == "undecided"
    assert parent.data.tags["mlflow.note.content"] == "**undecided**: b"


def test_a_changed_report_is_sent_again_and_its_links_work_apart_from_it(
    sweep: DiskSweep, uri: str, reader: Reader
) -> None:
    mirror = Mirror(sweep.path, uri)
    for verdict in ("worse", "undecided"):
        sweep.report(verdict)
        mirror.sync()
        (copy,) = (sweep.home / "mlartifacts").rglob("index.html")
        assert verdict in copy.read_text()
    (first,) = (sweep.home / "mlartifacts").rglob("first_samples.html")
    for page, n_links in ((copy, 1), (first, 0)):  # none but the one to a place on the page itself
        assert (page.read_text().count("<a "), page.read_text().count("<abbr ")) == (n_links, 1 + n_links)
    (parent,) = reader.parents()
    assert reader.artifacts(parent) == {
        *("index.html", "first_samples.html", "report.md", "report.json", "figures", "data")
    }
    assert (copy.parent / "data" / "steps.parquet").read_bytes() == b"PAR1"
    (sweep.path / "report" / "index.html").unlink()
    mirror.sync()


def test_completions_of_a_finished_cell(sweep: DiskSweep, uri: str, reader: Reader) -> None:
    from mlflow import MlflowClient

    cell = sweep.start("a")
    sample = {"step": 1, "final": True, "task": "sums", "problem_id": "p", "sample": 0, "text": "so 3", "n_tokens": 4}
    sample |= {"truncated": False, "extracted": "3", "correct": True}
    others = [sample | {"sample": 1}, sample | {"final": False}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([sample, *others]), cell.evals)
    problem = {"task": "sums", "split": "test", "problem_id": "p", "prompt": "1+2?", "answer": "3"}
    append_jsonl(cell.path / "problems.jsonl", [problem])
    cell.write_status("done")
    for mirror in (Mirror(sweep.path, uri), Mirror(sweep.path, uri)):  # MLflow's own way would append the second time
        mirror.sync()
    run_id = reader.children()["a-s0"].info.run_id
    path = Path(MlflowClient(tracking_uri=uri).download_artifacts(run_id, "completions.json"))
    table = json.loads(path.read_text())
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == [
        {"task": "sums", "problem": "p", "prompt": "1+2?", "completion": "so 3", "extracted": "3", "reference": "3"}
        | {"correct": True, "tokens": 4, "cut off": False}
    ]


def test_a_sweep_that_was_never_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Mirror(tmp_path / "nothing", "sqlite://").sync()


EVENTS = st.sampled_from(["train", "sync", "killed while it sends", "resume", "resume, then other rows", "restart"])


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
        elif event == "killed while it sends" and last:
            with pytest.MonkeyPatch.context() as patch, suppress(MirrorError):
                patch.setattr(MirroredRun, "set_status", lambda run, status, end_ms: None)
                patch.setattr(mirrored_run, "add_points", partial(points_then_killed, True))
                mirror.sync()
        elif event == "restart":
            mirror = Mirror(sweep.path, uri)
        elif "resume" in event:
            offset += 0.5 if "other" in event else 0.0
            cut(cell, last // 2)
            begin(cell, from_step=last // 2)
    cell.write_status("done")
    mirror.sync()
    records = [(row["step"], row["reward/mean"]) for row in cell.read_steps()]
    assert Reader(uri).curve("a-s0", "train/reward/mean") == records


def points_then_killed(is_done: bool, uri: str, curves_of_runs: Mapping[str, Curves]) -> bool:
    if is_done:
        add_points(uri, curves_of_runs)
    if any(curves_of_runs.values()):
        raise OSError("killed")
    return True
