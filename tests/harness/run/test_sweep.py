"""`bench run` from outside: interrupted, continued, and compared with one that nobody disturbed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from harness.errors import BenchError, RefusedError
from harness.models.language_model import LanguageModel
from harness.plan import make_plan
from harness.records import CellRecord, read_sweep
from harness.records.cell import status_in
from harness.records.files import read_json
from harness.records.rows import Status
from harness.run.question import write_question
from harness.run.stages import inputs_of_cell
from harness.run.sweep import SweepRun
from tests.harness.plan.files import finish
from tests.harness.run import bench
from tests.harness.run.stages_here import Quiet, StagesHere, no_executor, run_here
from tests.refusals import refuses

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc")]


SHORT = {"train.steps": 5, "eval.problems": 8, "rollout.max_completion_tokens": 16, "eval.max_completion_tokens": 16}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench.write_sweep(tmp_path_factory.mktemp("sweep"), base=SHORT)


@pytest.fixture(scope="module")
def unbroken(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a finished run: 2 arms x 2 seeds."""
    home = tmp_path_factory.mktemp("unbroken")
    code, stderr = bench.run_here(sweep, home)
    assert code == 0, stderr
    return home


@pytest.fixture
def home(tmp_path: Path, unbroken: Path) -> Path:
    """An empty home in which only the base evaluation is there, to save its time."""
    shutil.copytree(unbroken / "cache", tmp_path / "home" / "cache")
    return tmp_path / "home"


def test_finishes_every_cell(unbroken: Path) -> None:
    record = read_sweep(unbroken / "small")
    ended = [(cell.arm, cell.seed) for cell in record.cells if (cell.state, cell.step) == ("done", 5)]
    assert ended == [("group_std", 0), ("group_std", 1), ("no_std", 0), ("no_std", 1)]
    assert record.other_cells == []
    assert len({cell.digest for cell in record.cells}) == 4
    assert (record.base_scores_of()[0]["metrics"]["pass@1"] or 0) > 0


def test_a_run_is_repeated_from_its_records(unbroken: Path, tmp_path: Path) -> None:
    """In another home, with what differs from its provenance named, and to the same weights."""
    then = Path(shutil.copytree(unbroken, tmp_path / "then")) / "small"
    for starts in then.glob("cells/*/starts.jsonl"):
        row = json.loads(starts.read_text()) | {"commit": "0123456789", "processor": "Abacus"}
        row["packages"]["numpy"] = "1.0"
        starts.write_text(json.dumps(row) + "\n")
        status = json.loads(starts.with_name("status.json").read_text())
        del status["records"]  # which count the bytes of what was changed just now
        starts.with_name("status.json").write_text(json.dumps(status))
    home = tmp_path / "home"
    shutil.copytree(unbroken / "cache", home / "cache")
    code, stderr = bench.run_here(f"--from={then}", home)
    assert code == 0, stderr
    for value in ("0123456789", "Abacus"):
        assert value in stderr
    assert "torch was" not in stderr
    assert {cell.path.name: cell.digest for cell in read_sweep(home / "small").cells} == {
        cell.path.name: cell.digest for cell in read_sweep(then).cells
    }


def test_arms_with_one_seed_see_the_same_prompts_and_noise(unbroken: Path) -> None:
    """The first step of both arms is drawn before any update: the very same completions."""

    def first_step(arm: str, seed: int) -> list[tuple[str, str]]:
        (cell,) = (cell for cell in bench.cells(unbroken).values() if (cell.arm, cell.seed) == (arm, seed))
        return [(row["problem_id"], row["text"]) for row in bench.rollout_rows(cell) if row["step"] == 1]

    assert first_step("group_std", 0) == first_step("no_std", 0)
    assert first_step("group_std", 0) != first_step("group_std", 1)


def test_a_run_that_finds_everything_done_reads_few_statuses(
    sweep: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand cells, these files are most of what it does: as it begins, for the page of all runs, for the
    stand of the report and for that of the mirror."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    read: Counter[str] = Counter()

    def counted(folder: Path) -> Status:
        read[folder.name] += 1
        return status_in(folder)

    monkeypatch.setattr("harness.records.cell.status_in", counted)
    code, stderr = bench.run_here(sweep, unbroken)
    assert code == 0, stderr
    assert len(read) == 4 and max(read.values()) <= 5


def test_a_finished_sweep_is_topped_up_and_then_gets_another_seed(unbroken: Path, tmp_path: Path) -> None:
    """By its name. Trained cells are evaluated only, and the new one with as many samples as they have now."""
    home = Path(shutil.copytree(unbroken, tmp_path / "home"))
    trained = bench.all_contents(home)
    code, stderr = bench.run_here("small", home, "--eval-samples", "8")
    assert code == 0, stderr
    code, stderr = bench.run_here("small", home, "--seeds", "3")
    assert code == 0, stderr
    record = read_sweep(home / "small")
    assert [cell.evaluation is None for cell in record.cells] == [False, False, True] * 2
    finals = [row for cell in record.cells for row in cell.read_scores() if row["final"]]
    assert [row["n_samples"] for row in finals] == [8] * 6
    assert record.base_scores[0]["n_samples"] == 8
    assert trained.items() <= bench.all_contents(home).items()


def test_an_invalid_cell_is_run_again_only_if_asked_for(sweep: Path, tmp_path: Path) -> None:
    plan = make_plan(str(sweep))
    run, asked = (SweepRun(plan, tmp_path, "bench run", 1, no_executor, asked) for asked in (False, True))
    invalid, _ = (finish(cell, plan.folder(tmp_path)) for cell in plan.cells[:2])
    invalid.write_status("invalid")
    others = {cell.directory for cell in plan.cells[2:]}
    assert {cell.directory for cell in run.missing()} == others
    assert {cell.directory for cell in asked.missing()} == others | {invalid.path.name}


def test_a_cell_that_could_not_be_measured_is_recorded_and_a_remark_of_the_model_reaches_the_screen(
    sweep: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(Quiet):
        remarks: ClassVar[list[str]] = []

        def remark(self, sentence: str) -> None:
            self.remarks.append(sentence)

    monkeypatch.setattr(LanguageModel, "remarks", lambda self: ["plain"])
    run_here(make_plan(str(sweep)), home, Screen(), cells=("invalid", "mismatch"))
    assert Screen.remarks.count("plain") == 1
    assert {(cell.state, cell.reason) for cell in bench.cells(home).values()} == {("invalid", "mismatch")}


def test_another_question_leaves_cells_alone(sweep: Path, unbroken: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(unbroken, home)
    before = bench.all_contents(home)
    code, stderr = bench.run_here(sweep, home, "--set", "train.steps=1", "--set", "eval.problems=2", "--seeds", "1")
    assert code == 0, stderr
    record = read_sweep(home / "small")
    assert [(cell.arm, cell.seed, cell.step) for cell in record.cells] == [("group_std", 0, 1), ("no_std", 0, 1)]
    assert {cell.path.name for cell in record.other_cells} == before.keys()
    after = bench.all_contents(home)
    assert {name: after[name] for name in before} == before
    SweepRun(make_plan(str(sweep)), home, "bench run", 2, no_executor).run(Quiet())
    assert len(read_sweep(home / "small").cells) == 4


def test_arms_of_different_starts_have_each_its_scores_before_training(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {"whole": {}, "rounded": {"model.dtype": "bfloat16"}}
    code, stderr = bench.run_here(bench.write_sweep(tmp_path, arms, 1, {"train.steps": 1}), tmp_path / "home")
    assert code == 0, stderr
    record = read_sweep(tmp_path / "home" / "small")
    assert record.base_scores == [] and [*record.base_scores_by_arm] == ["whole", "rounded"]
    whole, rounded = (record.base_scores_of(arm) for arm in arms)
    assert whole[0]["task"] == rounded[0]["task"] == "arithmetic" and whole != rounded


def test_divergence_is_an_outcome(tmp_path: Path) -> None:
    """The arm is scored where its weights were last finite, flagged and kept; the other goes on; exit 0."""
    sweep = bench.write_sweep(tmp_path, {"calm": {}, "wild": {"train.learning_rate": 1e15}}, 1, SHORT)
    code, stderr = bench.run_here(sweep, tmp_path / "home")
    assert code == 0, stderr
    calm, wild = bench.cells(tmp_path / "home").values()
    assert (calm.arm, calm.state, calm.flags, calm.step) == ("calm", "done", [], 5)
    assert (wild.arm, wild.state, wild.flags, wild.step) == ("wild", "done", ["nan"], 0)
    (base,) = read_sweep(tmp_path / "home" / "small").base_scores
    (scored,) = wild.read_scores()
    assert scored["metrics"] == base["metrics"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 6 MB: room for the checkpoints of one cell, not of four."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mount is not permitted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_the_run_and_room_continues_it(sweep: Path, unbroken: Path, tiny_disk: Path) -> None:
    home = tiny_disk / "home"
    code, stderr = bench.run(sweep, home)
    assert code == 1 and "Traceback" not in stderr, stderr
    assert not {cell.state for cell in bench.cells(home).values()} & {"running", "failed"}
    subprocess.run(["mount", "-o", "remount,size=100m", str(tiny_disk)], check=True)
    code, stderr = bench.run_here(sweep, home)
    assert code == 0, stderr
    assert bench.all_contents(home) == bench.all_contents(unbroken)


FILTER = {"task.filter.type": "pass_rate", "task.filter.samples": 2, "task.filter.problems": 24}
FILTER_ARMS = {
    "all": {},
    "not_solved": FILTER | {"task.filter.lowest": 0.0},
    "mixed": FILTER,
    "other": FILTER | {"task.filter.samples": 3},
}


def test_pass_rates_are_measured_once_for_the_arms_and_seeds_that_share_them(tmp_path: Path) -> None:
    plan, home = make_plan(str(bench.write_sweep(tmp_path, FILTER_ARMS))), tmp_path / "home"
    executor = run_here(plan, home)
    shared, other = (home / job.path for job in executor.of_kind("pass_rates"))
    assert {
        (CellRecord.at(home / job.path).arm, inputs_of_cell(job.spec, home).get("pass_rates"))
        for job in executor.of_kind("cell")
    } == {("all", None), ("not_solved", shared), ("mixed", shared), ("other", other)}
    assert len(read_json(shared)) == 24
    kinds = [job.kind for job in executor.jobs]
    assert kinds.index("load") < kinds.index("pass_rates") < kinds.index("cell")
    assert not run_here(plan, home).of_kind("pass_rates")


def test_a_filter_that_leaves_too_few_prompts_is_refused_before_any_cell(tmp_path: Path) -> None:
    strict = FILTER | {"task.filter.problems": 4, "task.filter.lowest": 0.5, "task.filter.highest": 0.5}
    sweep, home = bench.write_sweep(tmp_path, {"all": {}, "strict": strict}), tmp_path / "home"
    with refuses(RefusedError, "run.too_many_prompts_per_step"):
        run_here(make_plan(str(sweep)), home)
    assert {cell.state for cell in bench.cells(home).values()} == {"pending"}


def test_a_pool_that_does_not_fit_is_refused_before_anything_starts(sweep: Path, tmp_path: Path) -> None:
    plan = make_plan(str(sweep), settings=["task.pool=9000"])
    with refuses(RefusedError, "run.pool_too_large", pool=9000):
        SweepRun(plan, tmp_path, "bench run", 1, no_executor).run(Quiet())
    assert not (tmp_path / "small").exists()


def test_identical_arms_are_identical(tmp_path: Path) -> None:
    """The shipped A/A sweep, with its page."""
    settings = {
        "train.steps": 2,
        "rollout.prompts_per_step": 4,
        "rollout.samples_per_prompt": 4,
        "eval.problems": 8,
        "eval.samples": 4,
        "eval.every": 2,
        "budget.tokens": "null",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    code, stderr = bench.run_here("aa", tmp_path, "--seeds", "2", *options, page=True)
    assert code == 0, stderr
    one, other = (
        [bench.contents(cell) for cell in bench.cells(tmp_path, "aa").values() if cell.arm == arm]
        for arm in ("one", "other")
    )
    assert one == other
    assert len({cell["status"]["digest"] for cell in one}) == 2
    (contrast,) = read_json(tmp_path / "aa" / "report" / "report.json")["contrasts"]
    assert contrast["verdict"] == "identical"
    assert contrast["difference_pp"] == 0


def test_a_model_that_cannot_be_loaded_is_refused_before_any_cell(sweep: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    code, stderr = bench.run_here(sweep, tmp_path / "home", "--set", f"model.source=path:{folder}")
    assert code == 2, stderr
    assert "Traceback" not in stderr
    assert not any(cell.path.joinpath("steps.jsonl").exists() for cell in bench.cells(tmp_path / "home").values())


def test_home_that_cannot_be_written(sweep: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "home"
    blocked.write_text("a file where the folder should be")
    with refuses(BenchError, "run.folder_not_writable") as refused:
        SweepRun(make_plan(str(sweep)), blocked, "bench run", 1, no_executor).run(Quiet())
    assert refused.value.exit_code == 2  # type: ignore[attr-defined]


def test_the_question_keeps_the_grid_and_what_is_asked_of_the_comparison(tmp_path: Path) -> None:
    """Without starting a cell; arms that were left out have no point."""
    listed = bench.write_sweep(tmp_path)
    knob, beta = "objective.rule.clip_high", "objective.kl.beta"
    document = yaml.safe_load(listed.read_text()) | {
        "ablate": [knob, beta],
        "base": {"algorithm": "grpo", "objective.kl.where": "loss", "train.updates_per_rollout": 2},
        "grid": {knob: [0.2, 0.28], beta: [0.01, 0.1]},
        "compare": {"new_problems": True},
    }
    del document["arms"]
    crossed = tmp_path / "crossed.yaml"
    crossed.write_text(yaml.safe_dump(document, sort_keys=False))
    names = ["clip_high=0.2+beta=0.01", "clip_high=0.28+beta=0.1"]
    for path, arms, grid, new_problems in (
        (listed, [], {}, False),
        (crossed, names, {names[0]: {knob: 0.2, beta: 0.01}, names[1]: {knob: 0.28, beta: 0.1}}, True),
    ):
        plan = make_plan(str(path), arms=arms)
        write_question(plan, tmp_path / "home", "bench run")
        record = read_sweep(plan.folder(tmp_path / "home"))
        assert (record.grid, record.new_problems) == (grid, new_problems)


def test_an_executor_that_works_in_another_home_ends_the_run(sweep: Path, tmp_path: Path) -> None:
    """Asking again for a result that will never be there would not end."""
    executor = StagesHere(tmp_path / "elsewhere")
    with refuses(BenchError, "run.output_not_there", stage="base"):
        SweepRun(make_plan(str(sweep)), tmp_path / "home", "bench run", 1, lambda slots: executor).run(Quiet())
