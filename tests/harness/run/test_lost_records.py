"""Records that lost something behind a cell's back: a resume notices, a finished cell is not `done`, reports go on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evals.samples import SampleRow
from harness.config.hashing import evaluation_hash
from harness.executors.base import Job, JobState
from harness.models.language_model import load_model
from harness.plan import make_plan
from harness.plan.filing import under_evaluation
from harness.records import CellRecord
from harness.records.files import DamagedRecordError, append_jsonl, read_object, sweep_temporary
from harness.run import cell as cell_module
from harness.run.cell import CellLog, CellRun
from harness.run.learning.base import Examples
from harness.run.loop import run_jobs
from harness.run.prompts import training_prompts
from harness.run.question import make_cells
from harness.run.sweep import SweepCells, SweepRun
from harness.training import checkpoint
from harness.training.checkpoint import load_latest
from tests.harness.run import bench
from tests.harness.run.small import Killed, ignore_progress, new_cell, run_cell, small_spec
from tests.harness.run.stages_here import AllHere, Quiet
from tests.harness.run.test_cell import contents
from tests.refusals import refuses

ROWS = ("starts.jsonl", "steps.jsonl", "timing.jsonl", "scores.jsonl", "problems.jsonl")


SPEC = small_spec(
    {
        "rollout.prompts_per_step": 2,
        "rollout.max_completion_tokens": 8,
        "eval.problems": 2,
        "eval.max_completion_tokens": 8,
    }
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    made = new_cell(tmp_path_factory.mktemp("unbroken") / "cell")
    run_cell(made, SPEC)
    return made


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    """Killed between its last checkpoint, of step 4, and the final evaluation."""
    real = CellRun._evaluate

    def evaluate(self: CellRun, samples: int, final: bool) -> None:
        if final:
            raise Killed
        real(self, samples, final)

    made = new_cell(tmp_path_factory.mktemp("stopped") / "cell")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CellRun, "_evaluate", evaluate)
        with pytest.raises(Killed):
            run_cell(made, SPEC)
    return made


def copy_of(cell: CellRecord, folder: Path) -> CellRecord:
    shutil.copytree(cell.path, folder)
    return CellRecord(folder, cell.arm, cell.seed, cell.hash)


def drop_row(number: int) -> Callable[[Path], None]:
    def drop(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        del lines[number]
        path.write_bytes(b"".join(lines))

    return drop


def keep_bytes(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


CUTS: dict[str, Callable[[Path], None]] = {
    "all of it": keep_bytes(0),
    "nearly all": keep_bytes(0.9),
    "the last byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "the first row": drop_row(0),
    "the last row": drop_row(-1),
    "the file": Path.unlink,
}


def losses(*names: str) -> list[tuple[str, str]]:
    """Pairs of a record and what it loses: one of each loss, and its last byte of every record."""
    rest = [name for name in names if name != "steps.jsonl"]
    return [("steps.jsonl", cut) for cut in CUTS] + [
        (name, cut) for name in rest for cut in ("the last byte", "the file")
    ]


@pytest.mark.parametrize(("name", "cut"), losses(*ROWS, "evals.jsonl", "rollouts"))
def test_a_checkpoint_knows_what_it_stands_on(stopped: CellRecord, tmp_path: Path, name: str, cut: str) -> None:
    cell = copy_of(stopped, tmp_path / "cell")
    last = load_latest(cell.checkpoints)
    assert last is not None and last.step == 4 and name in last.records
    assert cell.shortfall(last.records) is None
    path = next(iter(cell.rollouts.iterdir())) if name == "rollouts" else cell.path / name
    CUTS[cut](path)
    fault = cell.shortfall(last.records)
    assert fault is not None and str(cell.path / name) in fault


@pytest.mark.parametrize(("name", "cut"), losses(*ROWS, "evals.parquet", "evaluation.json", "rollouts"))
def test_a_finished_cell_that_lost_something_is_damaged(
    unbroken: CellRecord, tmp_path: Path, name: str, cut: str
) -> None:
    cell = copy_of(unbroken, tmp_path / "cell")
    CUTS[cut](next(iter(cell.rollouts.iterdir())) if name == "rollouts" else cell.path / name)
    assert cell.state == "damaged" and not cell.is_done
    assert unbroken.is_done
    assert str(cell.path / name) in (cell.reason or "")
    assert cell.read_status()["step"] == 4, "what else is known of it stays known"
    with pytest.raises(DamagedRecordError) as raised:
        cell.require_whole()
    assert name in str(raised.value)


def test_a_number_that_changed_in_place_is_found_by_who_reads_the_files(unbroken: CellRecord, tmp_path: Path) -> None:
    cell = copy_of(unbroken, tmp_path / "cell")
    cell.require_whole()
    text = cell.scores.read_bytes()
    cell.scores.write_bytes(text.replace(b'"step": 2', b'"step": 3'))
    assert cell.state == "done"
    with pytest.raises(DamagedRecordError) as raised:
        cell.require_whole()
    assert str(cell.scores) in str(raised.value)


def resumed(cell: CellRecord) -> tuple[list[str], list[int]]:
    """Go on with a cell; what it said, and from which step it trained."""
    said: list[str] = []
    trained: list[int] = []
    start, examples = load_model(SPEC.model.source), Examples(training_prompts(SPEC, {}))
    with pytest.MonkeyPatch.context() as patched:
        real_step = CellRun._train_step

        def step(self: CellRun) -> None:
            trained.append(self._step + 1)
            real_step(self)

        patched.setattr(CellRun, "_train_step", step)
        CellRun(cell, SPEC, lambda: start, examples, ignore_progress, remark=said.append).run()
    return said, trained


@pytest.mark.parametrize(("name", "row", "steps"), [("steps.jsonl", -1, [3, 4]), ("timing.jsonl", 0, [1, 2, 3, 4])])
def test_a_resume_goes_on_from_the_checkpoint_whose_rows_are_there(
    stopped: CellRecord, unbroken: CellRecord, tmp_path: Path, name: str, row: int, steps: list[int]
) -> None:
    cell = copy_of(stopped, tmp_path / "cell")
    drop_row(row)(cell.path / name)
    said, trained = resumed(cell)
    assert trained == steps
    assert said and all(str(cell.path / name) in one and one in cell.log.read_text() for one in said)
    assert contents(cell) == contents(unbroken)
    assert [path.name for path in sorted(cell.checkpoints.iterdir())] == ["step-000002", "step-000004"]


def test_a_later_start_counts_no_checkpoint_that_it_made_void(stopped: CellRecord, tmp_path: Path) -> None:
    """Gone on from step 2 and killed before the next checkpoint: that of step 4 is whole again, but of an older
    start."""
    cell = copy_of(stopped, tmp_path / "cell")
    steps = (cell.path / "steps.jsonl").read_bytes()
    drop_row(-1)(cell.path / "steps.jsonl")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(CellRun, "_train_step", lambda self: (_ for _ in ()).throw(Killed))
        run_cell(cell, SPEC)
    (cell.path / "steps.jsonl").write_bytes(steps)
    said, trained = resumed(cell)
    assert trained == [3, 4] and len(said) == 1


def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, int] = {}
    checked: list[int] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(handle: int) -> None:
        synced[str(Path(f"/proc/self/fd/{handle}").readlink())] = os.fstat(handle).st_size
        real_fsync(handle)

    def rename(self: Path, target: Path) -> Path:
        if target.parent.name == "checkpoints" and target.name.startswith("step-"):
            meta = read_object(self / "checkpoint.json")
            cell = target.parents[1]
            for name, there in meta["records"].items():
                files = [*(cell / name).iterdir()] if "files" in there else [cell / name]
                for file in files:
                    written = f"{file.parent}/.{file.name}." if "files" in there else str(file)  # under its first name
                    sizes = [size for path, size in synced.items() if path.startswith(written)]
                    assert max(sizes, default=-1) >= file.stat().st_size, name
                assert str(files[0].parent) in synced
            assert {str(self), *(str(file) for file in self.iterdir())} <= synced.keys()
            checked.append(meta["step"])
        moved = real_rename(self, target)
        if not target.name.endswith(".tmp"):  # what is removed is renamed too
            synced.pop(str(target.parent), None)
        return moved

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    cell = new_cell(tmp_path.resolve() / "cell")
    run_cell(cell, SPEC)
    assert checked == [0, 2, 4]
    assert str(cell.checkpoints) in synced, "the name of the last checkpoint, too"


def test_a_checkpoint_of_another_model_is_named(stopped: CellRecord, tmp_path: Path) -> None:
    cell = copy_of(stopped, tmp_path / "cell")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        other = checkpoint.Checkpoint(4, 1, {"other": torch.zeros(1)}, {}, {})
        patched.setattr(cell_module, "load_latest", lambda *_: other)
        with refuses(DamagedRecordError, "run.checkpoint_of_another_cell", step=4):
            run_cell(cell, SPEC)


def test_samples_of_one_that_woke_up_late_do_not_count(tmp_path: Path) -> None:
    cell = new_cell(tmp_path / "cell")
    for epoch, from_step in ((1, 0), (2, 4)):
        append_jsonl(cell.path / "starts.jsonl", [{"epoch": epoch, "from_step": from_step}])
    row = dict.fromkeys(SampleRow.__annotations__) | {"task": "t", "problem_id": "p", "text": "", "extracted": ""}
    row |= {"sample": 0, "n_tokens": 1, "truncated": False, "correct": True, "reason": ""}
    row |= {"verdicts": "{}", "reasons": "{}"}
    written = [(1, 2, "kept"), (2, 6, "mine"), (1, 6, "late")]
    rows = [row | {"step": step, "final": False, "text": text, "epoch": epoch} for epoch, step, text in written]
    append_jsonl(cell.path / "evals.jsonl", rows)
    assert [row["text"] for row in CellLog(cell, 2).samples({}).rows()] == ["kept", "mine"]


class OnlyDamaged(AllHere):
    """An executor that does the jobs of damaged cells, and takes the others for done."""

    def _do(self, job: Job) -> tuple[JobState, str | None]:
        cell = under_evaluation(CellRecord.at(self.home / job.path), evaluation_hash(job.spec))
        return super()._do(job) if cell.state == "damaged" else ("done", None)


def test_one_bad_cell_stops_no_other_of_its_sweep(tmp_path: Path) -> None:
    class Told(Quiet):
        def ended(self, name: str, state: str, reason: str | None) -> None:
            told[name] = (state, reason)

    told: dict[str, tuple[str, str | None]] = {}
    home = tmp_path / "home"
    plan = make_plan(str(bench.write_sweep(tmp_path)))
    executor = OnlyDamaged(home)
    run = SweepRun(plan, home, "bench run", 1, lambda slots: executor)
    make_cells(plan, run.missing(), home)
    first, second, third, *others = run.missing()
    plan.record(third, home).write_status("done")
    (plan.record(third, home).path / "evaluation.json").write_text('{"hash": ')
    (plan.record(first, home).path / "status.json").write_text('{"schema": 4}')
    shutil.rmtree(plan.record(second, home).path)
    plan.record(second, home).path.write_text("a file in the place of the folder")
    make_cells(plan, run.missing(), home)
    run_jobs(executor, SweepCells(run, run.missing(), Told()))
    states = [told[f"{cell.arm}-s{cell.seed}"][0] for cell in (first, third, *others)]
    assert states == ["damaged"] * 2 + ["done"] * len(others)
    for cell, name in ((third, "evaluation.json"), (first, "status.json")):
        assert name in str(told[f"{cell.arm}-s{cell.seed}"][1])
    assert plan.record(first, home).state == "damaged"


def test_what_killed_processes_left_aside_is_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    for name in (".spec.json.1.tmp", ".new.2.tmp", "kept.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".folder.3.tmp").mkdir()
    (tmp_path / ".folder.3.tmp" / "file").touch()
    for name in (".spec.json.1.tmp", ".folder.3.tmp", "kept.tmp"):
        os.utime(tmp_path / name, (0, 0))
    sweep_temporary(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new.2.tmp", "kept.tmp"]
