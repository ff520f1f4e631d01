from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from evals.errors import EvalError
from harness.config.run_spec import RunSpec
from harness.engines.base import EngineMismatchError
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model, weights_digest
from harness.models.start import StartingPoint
from harness.plan import make_plan
from harness.records import CellRecord
from harness.records.files import read_json, write_json
from harness.records.lease import hold_lease
from harness.run import jobs
from harness.run.cell import CellLog
from harness.run.jobs import Interrupted, Job, run_job
from harness.run.prompts import candidates
from harness.run.sweep import SweepRun
from tests.harness.run.small import small_spec

COLD_START = {
    "model.source": "scratch:tiny",
    "model.cold_start.type": "sft",
    "model.cold_start.data": "demonstrations:arithmetic",
    "model.cold_start.steps": 2,
    "model.cold_start.batch_size": 4,
}
FILTER = {
    "task.filter": {"type": "pass_rate", "samples": 2, "problems": 24},
    "train.steps": 2,
    "eval.problems": 1,
}


def job(kind: str, path: Path, spec: RunSpec | None = None) -> Job:
    spec = spec or small_spec()
    return Job(kind, str(path), json.loads(spec.model_dump_json()), spec.model.source)  # type: ignore[arg-type]


def ignore(event: dict[str, Any]) -> None:
    pass


def test_a_job_travels_as_json(tmp_path: Path) -> None:
    made = job("cell", tmp_path)
    assert Job(**json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RefusedError("no such model"), ("refused", "no such model")),
        (EvalError("no such task"), ("refused", "no such task")),
        (EngineMismatchError("log-probs differ by 0.7"), ("invalid", "log-probs differ by 0.7")),
        (
            OSError(errno.ENOSPC, "No space left", "/full/file"),
            ("interrupted", "the disk is full; once there is room, the next run continues it"),
        ),
    ],
)
def test_what_a_user_can_mend_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: tuple[str, str]
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setitem(jobs._DO, "load", fail)
    assert run_job(job("load", tmp_path), StartingPoint(), ignore) == expected


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ZeroDivisionError(), Interrupted()])
def test_anything_else_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setitem(jobs._DO, "load", fail)
    with pytest.raises(type(error)):
        run_job(job("load", tmp_path), StartingPoint(), ignore)


def test_what_was_decided_about_the_model_is_told_as_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageModel, "remarks", lambda self: ["the chat template is the plain one"])
    told: list[dict[str, object]] = []
    assert run_job(job("load", tmp_path), StartingPoint(), told.append) == ("done", None)
    assert [event["remark"] for event in told if "remark" in event] == ["the chat template is the plain one"]


class TestColdStart:
    def test_leaves_a_model(self, tmp_path: Path) -> None:
        made = job("prepare", tmp_path / "model", small_spec(COLD_START))
        assert run_job(made, StartingPoint(), ignore) == ("done", None)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        trained, start = load_model(f"path:{tmp_path / 'model'}"), load_model("scratch:tiny")
        assert weights_digest(trained.model.state_dict()) != weights_digest(start.model.state_dict())

    def test_that_another_run_has_made_meanwhile_is_left(self, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text("another")
        made = job("prepare", tmp_path / "model", small_spec(COLD_START))
        assert run_job(made, StartingPoint(), ignore) == ("done", None)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert (tmp_path / "model" / "config.json").read_text() == "another"


class TestCell:
    def cell(self, tmp_path: Path) -> CellRecord:
        folder = tmp_path / "arm-s0-0123456789"
        folder.mkdir()
        return CellRecord.at(folder)

    def test_that_another_process_runs_is_left(self, tmp_path: Path) -> None:
        cell = self.cell(tmp_path)
        with hold_lease(cell.path):
            state, reason = run_job(job("cell", cell.path), StartingPoint(), ignore)
        assert state == "taken"
        assert reason is not None and "another process" in reason
        assert not (cell.path / "status.json").exists()

    def test_that_is_done_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may have been finished by another run between this one's plan and its turn."""
        cell = self.cell(tmp_path)
        cell.write_status("done", digest="abc")
        assert run_job(job("cell", cell.path), StartingPoint(), ignore) == ("done", None)
        assert (cell.state, cell.digest) == ("done", "abc")
        assert not cell.log.exists()

    def test_that_is_interrupted_says_so(self, tmp_path: Path) -> None:
        cell = self.cell(tmp_path)

        def stop(event: dict[str, Any]) -> None:
            raise Interrupted

        with pytest.raises(Interrupted):
            run_job(job("cell", cell.path), StartingPoint(), stop)
        assert cell.state == "interrupted"
        assert cell.reason == "interrupted; the next run continues it"

    def test_one_after_the_other_in_one_process_are_as_in_processes_of_their_own(self, tmp_path: Path) -> None:
        """Nothing of a cell stays in the model that the next one starts from."""
        start = StartingPoint()
        spec = small_spec({"train.steps": 2, "eval.problems": 1, "train.weight_decay": 0.1})
        digests = []
        for arm in ("one", "other"):
            folder = tmp_path / f"{arm}-s0-0123456789"
            folder.mkdir()
            assert run_job(job("cell", folder, spec), start, ignore) == ("done", None)
            digests.append(CellRecord.at(folder).digest)
        assert digests[0] == digests[1]


class TestFilter:
    def test_a_cell_trains_on_the_prompts_that_are_left(self, tmp_path: Path) -> None:
        spec, start = small_spec(FILTER), StartingPoint()
        told: list[dict[str, Any]] = []
        rates, folder = tmp_path / "rates.json", tmp_path / "arm-s0-0123456789"
        folder.mkdir()
        assert run_job(job("pass_rates", rates, spec), start, told.append) == ("done", None)
        assert told == [{"phase": "measuring pass rates", "step": 24, "steps": 24, "done_frac": 1.0}]
        made = replace(job("cell", folder, spec), inputs={"pass_rates": str(rates)})
        assert run_job(Job(**json.loads(json.dumps(made.to_json()))), start, ignore) == ("done", None)
        left = {problem_id for problem_id, correct in read_json(rates).items() if correct == 1}
        paths = CellRecord.at(folder).rollouts.iterdir()
        drawn = {row["problem_id"] for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()}
        assert drawn <= left
        assert 4 <= len(drawn) <= len(left) < 24

    def test_that_leaves_too_few_prompts_is_refused(self, tmp_path: Path) -> None:
        spec = small_spec(FILTER)
        rates, folder = tmp_path / "rates.json", tmp_path / "arm-s0-0123456789"
        folder.mkdir()
        write_json(rates, {problem.id: 2 for problem in candidates(spec)})
        state, reason = run_job(
            replace(job("cell", folder, spec), inputs={"pass_rates": str(rates)}), StartingPoint(), ignore
        )
        assert state == "refused"
        assert reason is not None and "task.filter keeps 0 of the 24" in reason


def test_a_stop_after_the_end_takes_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CellRecord(tmp_path / "arm-s0-0123456789", "arm", 0, "0123456789")
    cell.path.mkdir()

    def stop_at_the_closing_note(log: CellLog, message: str) -> None:
        if message.startswith("done"):
            raise Interrupted

    monkeypatch.setattr(CellLog, "note", stop_at_the_closing_note)
    with pytest.raises(Interrupted):
        run_job(job("cell", cell.path), StartingPoint(), ignore)
    assert (cell.state, cell.reason) == ("done", None)
    samples = cell.read_evals()
    assert samples is not None
    assert run_job(job("cell", cell.path), StartingPoint(), ignore) == ("done", None)
    assert samples.equals(cell.read_evals())


def test_a_cell_that_another_run_finished_meanwhile_stays_done(tmp_path: Path) -> None:
    run = SweepRun(make_plan("aa", seeds=1), tmp_path, "bench run aa", workers=1)
    missing = run.missing()
    record = run.plan.record(missing[0], tmp_path)
    record.path.mkdir(parents=True)
    record.write_status("done", digest="ab")
    run.make_cells(missing)
    assert (record.state, record.digest) == ("done", "ab")
