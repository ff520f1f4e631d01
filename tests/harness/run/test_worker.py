from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.errors import EvalError
from harness import plugins
from harness.config.hashing import data_digests, evaluation_hash
from harness.engines.base import EngineMismatchError
from harness.errors import RefusedError
from harness.executors.base import Ended, Event, Job
from harness.models.language_model import load_model, weights_digest
from harness.models.start import StartingPoint
from harness.plan import make_plan
from harness.processes import Interrupted
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE
from harness.records.files import read_json, write_json
from harness.records.lease import hold_lease
from harness.run.cell import CellLog, CellRun
from harness.run.loop import record_end
from harness.run.question import make_cells
from harness.run.stages import StageContext, find_stage, lease_folder, result_path, stages_of_cell
from harness.run.worker import run_job
from tests.harness.run.bench import rollout_rows
from tests.harness.run.small import ignore_progress, new_cell, small_spec
from tests.harness.run.stages_here import job_of

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


def job(kind: str, name: str, settings: dict[str, Any] | None = None) -> Job:
    return Job(kind, name, small_spec(settings))


def do(job: Job, home: Path, tell: Callable[[Event], None] = ignore_progress) -> tuple[str, str]:
    """Run a job in this process; returns its state and the reason."""
    state, reason = run_job(job, home, StartingPoint(), tell)
    return state, reason or ""


def taken_over(cell: CellRecord) -> Callable[[CellRun], None]:
    """A step during which somebody else takes the lease."""

    def step(run: CellRun) -> None:
        path = cell.path / "lease.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"owner": "another"}))
        run._checkpoint()

    return step


ignore = ignore_progress


def test_a_job_travels_as_json() -> None:
    made = Job("cell", "small/cells/arm", small_spec(), ["mine"], ["/somewhere"], {"mine": "ab"})
    travelled = Job.from_json(json.loads(json.dumps(made.to_json())))
    assert travelled.to_json() == json.loads(json.dumps(made.to_json()))
    assert travelled.spec == made.spec


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the stage `load` raise this."""

    def fail(path: Path, context: StageContext) -> None:
        raise error

    stage = replace(find_stage("load"), make=fail)
    monkeypatch.setattr("harness.run.stages.find_stage", lambda name: stage)


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
    failing(monkeypatch, error)
    assert do(job("load", ""), tmp_path) == expected


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ZeroDivisionError(), Interrupted()])
def test_anything_else_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        do(job("load", ""), tmp_path)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_cold_start_leaves_a_model_unless_another_run_has_made_it(tmp_path: Path, is_made: bool) -> None:
    model = tmp_path / "model"
    if is_made:
        model.mkdir()
        (model / "config.json").write_text("another")
    assert do(job("start", "model", COLD_START), tmp_path) == ("done", "")
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "leases"}
    if is_made:
        assert (model / "config.json").read_text() == "another"
    else:
        made, start = load_model(f"path:{model}"), load_model("scratch:tiny")
        assert weights_digest(made.model.state_dict()) != weights_digest(start.model.state_dict())


class TestSharedStage:
    """Two processes want one result; the other holds the lease at first."""

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        """The results made here."""
        paths: list[Path] = []

        def make(path: Path, context: StageContext) -> None:
            context.tell_progress(1, 2)
            context.tell_progress(2, 2)
            paths.append(path)
            write_json(path, "here")

        stage = replace(find_stage("base"), make=make)
        monkeypatch.setattr("harness.run.stages.find_stage", lambda name: stage)
        monkeypatch.setattr("harness.records.lease._LOOK_EVERY_S", 0.01)
        return paths

    def run(self, home: Path, when_told: Callable[[str], None]) -> list[str]:
        """Run the stage; `when_told` hears each phase, all of which are returned."""
        phases: list[str] = []

        def tell(event: Event) -> None:
            phases.append(event["phase"])
            when_told(event["phase"])

        assert do(job("base", "cache/base.json"), home, tell) == ("done", "")
        return phases

    def lease(self, home: Path) -> Path:
        folder = lease_folder(home / "cache" / "base.json")
        folder.mkdir(parents=True)
        return folder

    def test_that_another_process_makes_is_waited_for(self, tmp_path: Path, made: list[Path]) -> None:
        with ExitStack() as other:
            other.enter_context(hold_lease(self.lease(tmp_path)))

            def finish(phase: str) -> None:
                write_json(tmp_path / "cache" / "base.json", "there")
                other.close()

            phases = self.run(tmp_path, finish)
        assert [phase.partition(" process")[0] for phase in phases] == ["waiting for"]
        assert (made, read_json(tmp_path / "cache" / "base.json")) == ([], "there")

    def test_that_another_process_gave_up_is_made_here(self, tmp_path: Path, made: list[Path]) -> None:
        with ExitStack() as other:
            other.enter_context(hold_lease(self.lease(tmp_path)))
            phases = self.run(tmp_path, lambda phase: other.close())
        assert [phase.partition(" ")[0] for phase in phases] == ["waiting", "evaluating", "evaluating"]
        assert made == [tmp_path / "cache" / "base.json"]

    def test_that_another_process_took_over_is_left_to_it(
        self, tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This one was stopped for long, and hears of it at its next heartbeat."""
        monkeypatch.setattr("harness.records.lease.HEARTBEAT_S", 0.01)
        lease = self.lease(tmp_path) / "lease.json"

        def take_over(phase: str) -> None:
            lease.write_text(json.dumps(read_json(lease) | {"owner": "another", "released": True}))
            write_json(tmp_path / "cache" / "base.json", "there")
            time.sleep(0.5)

        assert len(self.run(tmp_path, take_over)) == 1
        assert (made, read_json(tmp_path / "cache" / "base.json")) == ([], "there")


class TestCell:
    def cell(self, tmp_path: Path) -> CellRecord:
        folder = tmp_path / "arm-s0-0123456789"
        folder.mkdir()
        return CellRecord.at(folder)

    def test_that_another_process_runs_is_left(self, tmp_path: Path) -> None:
        cell = self.cell(tmp_path)
        with hold_lease(cell.path):
            assert do(job("cell", cell.path.name), tmp_path)[0] == "taken"
        assert not (cell.path / "status.json").exists()

    @pytest.mark.parametrize("name", ["status.json", "steps.jsonl", "rollouts", "checkpoints"])
    def test_with_something_else_in_the_place_of_a_record_is_named_and_left(self, tmp_path: Path, name: str) -> None:
        cell = self.cell(tmp_path)
        if name == "steps.jsonl":
            (cell.path / name).mkdir()
        else:
            (cell.path / name).write_text('{"state": ')
        state, reason = do(job("cell", cell.path.name), tmp_path)
        assert state == "damaged" and str(cell.path / name) in reason
        assert (cell.path / name).is_dir() or (cell.path / name).read_text() == '{"state": '

    def test_whose_checkpoints_are_somebody_elses_is_named_and_left(self, tmp_path: Path) -> None:
        cell = self.cell(tmp_path)
        folder = cell.checkpoints / "step-000002"
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_text('{"model": "mine"}')
        asked = job("cell", cell.path.name)
        state, reason = run_job(asked, tmp_path, StartingPoint(), ignore)
        assert state == "damaged" and str(folder) in (reason or "")
        record_end(Ended(asked, state, reason), cell)
        assert (cell.state, cell.reason) == ("damaged", reason)

    def test_that_another_one_took_over_is_left_to_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """This one was stopped, taken for dead, and woke up after a step."""
        cell = self.cell(tmp_path)
        monkeypatch.setattr(CellRun, "_train_step", taken_over(cell))
        assert do(job("cell", cell.path.name), tmp_path)[0] == "taken"
        assert cell.read_status()["state"] == "interrupted", "as the other one wrote it"
        assert [path.name for path in cell.checkpoints.iterdir()] == ["step-000000"]

    def test_that_is_done_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may have been finished by another run between this one's plan and its turn."""
        cell = self.cell(tmp_path)
        again = job("cell", cell.path.name)
        write_json(cell.path / EVALUATION_FILE, {"hash": evaluation_hash(again.spec)})
        cell.write_status("done", digest="abc")
        assert do(again, tmp_path) == ("done", "")
        assert (cell.state, cell.digest) == ("done", "abc")
        assert not cell.log.exists()

    def test_that_is_interrupted_says_so(self, tmp_path: Path) -> None:
        cell = self.cell(tmp_path)

        def stop(event: Event) -> None:
            raise Interrupted

        with pytest.raises(Interrupted):
            do(job("cell", cell.path.name), tmp_path, stop)
        assert cell.state == "interrupted" and cell.reason

    @pytest.mark.slow
    def test_one_after_the_other_in_one_process_are_as_in_processes_of_their_own(self, tmp_path: Path) -> None:
        """Nothing of a cell stays in the model that the next one starts from."""
        start = StartingPoint()
        settings = {"train.steps": 2, "eval.problems": 1, "train.weight_decay": 0.1}
        digests = []
        for arm in ("one", "other"):
            cell = new_cell(tmp_path / f"{arm}-s0-0123456789")
            assert run_job(job("cell", cell.path.name, settings), tmp_path, start, ignore) == ("done", None)
            digests.append(cell.digest)
        assert digests[0] == digests[1]


@pytest.mark.slow
def test_a_cell_trains_on_the_prompts_that_a_filter_leaves(tmp_path: Path) -> None:
    spec = small_spec(FILTER)
    told: list[Event] = []
    (stage,) = stages_of_cell(spec)
    rates, cell = result_path(stage, spec, tmp_path), new_cell(tmp_path / "arm-s0-0123456789")
    rates.parent.mkdir()
    assert do(job_of("pass_rates", rates, spec, tmp_path), tmp_path, told.append) == ("done", "")
    assert [(event["step"], event["steps"], event["done_frac"]) for event in told] == [(24, 24, 1.0)]
    assert do(job("cell", cell.path.name, FILTER), tmp_path) == ("done", "")
    left = {problem_id for problem_id, correct in read_json(rates).items() if correct == 1}
    drawn = {row["problem_id"] for row in rollout_rows(cell)}
    assert drawn <= left
    assert 4 <= len(drawn) <= len(left) < 24


@pytest.mark.slow
def test_a_cell_is_filed_under_the_code_it_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module, or a helper that it imports, that changes before the first step or in mid-run makes it invalid."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from helper import VALUE\n\ndef reward(group, context):\n    return [VALUE] * len(group)\n"
    )
    helper = tmp_path / "helper.py"
    cell = new_cell(tmp_path / "home" / "arm-s0-0123456789")

    def run(tell: Any = ignore) -> tuple[str, str]:
        plugins.use([], [])
        return do(made, tmp_path / "home", tell)

    helper.write_text("VALUE = 1.0")
    plugins.use([], [])
    spec = small_spec({"reward.parts.mine:reward": 1.0, "train.steps": 2, "eval.problems": 1})
    made = job_of("cell", cell.path, spec, tmp_path / "home")
    assert set(made.code) == {"mine", "helper"}

    helper.write_text("VALUE = 2.0")
    state, reason = run()
    assert state == "invalid" and str(helper) in reason
    assert not (cell.path / "steps.jsonl").exists()

    helper.write_text("VALUE = 1.0")
    state, reason = run(lambda event: helper.write_text("VALUE = 3.0"))
    assert state == "invalid" and str(helper) in reason
    assert cell.read_steps()[-1]["reward/mine:reward"] == 1.0, "what ran is what was planned"

    helper.write_text("VALUE = 1.0")
    assert run() == ("done", "")
    assert cell.state == "done"


def test_a_template_that_was_edited_before_the_worker_read_it_makes_a_cell_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("text: '{problem}'")
    cell = new_cell(tmp_path / "home" / "arm-s0-0123456789")
    made = job_of("cell", cell.path, small_spec({"task.template": "mine.yaml"}), tmp_path / "home")
    state, reason = do(replace(made, code={"mine.yaml": "the digest of what it held then"}), tmp_path / "home")
    assert state == "invalid" and "mine.yaml" in reason


def test_rows_that_were_edited_after_the_plan_make_a_cell_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows, row = Path("rows.jsonl"), '{"problem": "1+1=", "answer": "2"}\n'
    Path("mine.yaml").write_text(
        "name: mine\ntemplate: plain\ngrader: numeric\n"
        "splits: {train: {file: rows.jsonl}, test: {file: held_out.jsonl}}\n"
    )
    for file in (rows, Path("held_out.jsonl")):
        file.write_text(row * 4)
    spec = small_spec({"task.train": "mine.yaml", "train.steps": 1})
    cell = new_cell(tmp_path / "home" / "arm-s0-0123456789")
    made = replace(job_of("cell", cell.path, spec, tmp_path / "home"), code=data_digests(spec))
    rows.write_text(row * 3 + row.replace("1+1", "2+0"))
    state, reason = do(made, tmp_path / "home")
    assert state == "invalid" and "mine.yaml" in reason
    assert not (cell.path / "steps.jsonl").exists()


@pytest.mark.slow
def test_a_stop_after_the_end_takes_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = new_cell(tmp_path / "arm-s0-0123456789")

    def stop_at_the_closing_note(log: CellLog, message: str) -> None:
        if message.startswith("done"):
            raise Interrupted

    monkeypatch.setattr(CellLog, "note", stop_at_the_closing_note)
    with pytest.raises(Interrupted):
        do(job("cell", cell.path.name), tmp_path)
    assert (cell.state, cell.reason) == ("done", None)
    samples = cell.read_evals()
    assert samples is not None
    assert do(job("cell", cell.path.name), tmp_path) == ("done", "")
    assert samples.equals(cell.read_evals())


def test_a_cell_that_another_run_finished_meanwhile_stays_done(tmp_path: Path) -> None:
    plan = make_plan("aa", seeds=1)
    record = plan.record(plan.cells[0], tmp_path)
    record.path.mkdir(parents=True)
    record.write_status("done", digest="ab")
    make_cells(plan, plan.cells, tmp_path)
    assert (record.state, record.digest) == ("done", "ab")
