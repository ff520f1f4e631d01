"""Kills of whole processes at seeded moments, through the command line: in the end all is as if nothing had been."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.records import CellRecord
from harness.records.files import read_json
from harness.training.checkpoint import checkpoint_folders
from tests.harness.run import bench
from tests.harness.run.storm import OF_PARENT, OF_WORKERS, SLOW_DISK, Blow, Storm, forecast, moments_of_leases
from tests.harness.search.fake_cells import write_search

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

ARMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm": "ppo"},
    "refill": {"objective.zero_std": "refill"},
    "adaptive_entropy": {
        "objective.entropy.adaptive.type": "step_both_ways",
        "objective.entropy.adaptive.target_nats": 2.0,
        "objective.entropy.adaptive.delta": 0.1,
    },
    "dpo_online": {"algorithm": "dpo", "pairs.pairing": "all"},
    "dpo_rounds": {
        "algorithm": "dpo",
        "pairs.pairing": "all",
        "objective.reference": "round_start",
        "rollout.sampler": "round",
        "rollout.round_steps": 3,
    },
}
SETTINGS = {
    "train.steps": 8,
    "train.checkpoint_every": 2,
    "train.learning_rate": 3e-3,
    "eval.every": 4,
    "eval.problems": 8,
    "eval.samples": 32,
}
WITHOUT_MIRROR = """
import contextlib
import harness.tracking as tracking
from harness.cli import main
tracking.MirrorThread = lambda mirror: contextlib.nullcontext()
main()
"""
WITH_MIRROR = "from harness.cli import main\nmain()\n"
OWN = ("phase_s", "cost", "total_s", "duration_s", "study_id")
"""What no two runs have in common: times, and the random name of a study."""
MIDDLE = ["resume", "training", "training", "checkpoint", "evaluation", "compaction", None]


@pytest.fixture(autouse=True)
def _slow_disk(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("disk")
    (folder / "sitecustomize.py").write_text(SLOW_DISK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with an arm for each algorithm."""
    path = bench.write_sweep(tmp_path_factory.mktemp("sweep"), ARMS, seeds=1)
    document = yaml.safe_load(path.read_text())
    document["base"] |= SETTINGS
    document["ablate"] = ["algorithm", "pairs", "rollout.sampler", "rollout.round_steps"]
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def unbroken(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run that nobody disturbed, in this process."""
    home = tmp_path_factory.mktemp("unbroken")
    code, stderr = bench.run_here(sweep, home, page=True)
    assert code == 0, stderr
    return home


def without_own(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: without_own(value) for key, value in document.items() if key not in OWN}
    return [*map(without_own, document)] if isinstance(document, list) else document


def state_after(cell: CellRecord) -> dict[str, Any]:
    """Weights, optimiser and all else that the last checkpoint holds, by checksums."""
    last = read_json(checkpoint_folders(cell.checkpoints)[-1] / "checkpoint.json")
    return {name: last[name] for name in ("step", "generated_tokens", "progress", "xxh3_128")}


def assert_equal(home: Path, unbroken: Path, name: str = "small") -> None:
    """Weights, records and report."""
    assert_cells_equal(home, unbroken, name)
    assert bench.cells(home, name).keys() == bench.cells(unbroken, name).keys()
    report, expected = (read_json(place / name / "report" / "report.json") for place in (home, unbroken))
    assert without_own(report) == without_own(expected)


def assert_cells_equal(home: Path, unbroken: Path, name: str = "small") -> None:
    """Weights and records of the cells that there are."""
    there, expected = bench.cells(home, name), bench.cells(unbroken, name)
    for cell in there:
        assert bench.contents(there[cell]) == bench.contents(expected[cell]), cell
        assert state_after(there[cell]) == state_after(expected[cell]), cell
        assert there[cell].read_problems() == expected[cell].read_problems(), cell
        epochs = [start["epoch"] for start in there[cell].read_starts()]
        assert epochs == sorted(set(epochs)), cell
        there[cell].require_whole()


def through(storm: Storm, blows: Sequence[Blow]) -> None:
    """And show what was hit."""
    try:
        storm(blows)
    finally:
        print(storm.table())
    assert storm.phases_hit.keys() >= {blow.phase for blow in blows if blow.phase is not None}


@pytest.mark.slow
def test_a_sweep_comes_through_a_kill_in_each_phase(sweep: Path, unbroken: Path, tmp_path: Path) -> None:
    """One algorithm after the other is killed. A kill at any time would only hit one of the phases again."""
    middle = [phase for phase in MIDDLE if phase is not None]
    storm = Storm(lambda: bench.start(sweep, tmp_path, "--workers", "1", program=WITHOUT_MIRROR), tmp_path)
    through(storm, forecast(0, middle, arms=[*ARMS]))
    assert {place.partition("-s")[0] for place in storm.places_hit} >= ARMS.keys()
    assert storm.kills == 9 and storm.phases_hit.keys() >= {*OF_PARENT, *OF_WORKERS}
    assert_equal(tmp_path, unbroken)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "program"), [(seed, WITH_MIRROR) for seed in (1, 2, 3)])
def test_a_sweep_comes_through_ten_kills(sweep: Path, unbroken: Path, tmp_path: Path, seed: int, program: str) -> None:
    storm = Storm(lambda: bench.start(sweep, tmp_path, program=program), tmp_path)
    through(storm, forecast(seed, MIDDLE))
    assert storm.kills == 10 and storm.phases_hit.keys() >= {*OF_PARENT, *OF_WORKERS}
    assert_equal(tmp_path, unbroken)


@pytest.mark.long
def test_workers_of_a_shared_sweep_come_through_twelve_kills(sweep: Path, unbroken: Path, tmp_path: Path) -> None:
    storm = Storm(lambda: bench.start(sweep, tmp_path, verb="worker", program=WITHOUT_MIRROR), tmp_path)
    # What only the report needs is made last, by whoever is free first.
    through(storm, forecast(4, [*MIDDLE, *MIDDLE[:3]], first=("start",), last=("stages",)))
    assert storm.kills == 12
    code, stderr = bench.run(sweep, tmp_path, program=WITHOUT_MIRROR)
    assert code == 0, stderr
    assert_equal(tmp_path, unbroken)


TUNED = {"sampler": {"type": "tpe", "options": {"n_startup_trials": 1}}}
TRIALS = 5


@pytest.mark.long
def test_a_search_comes_through_ten_kills(tmp_path: Path) -> None:
    """With one trial at a time: of several, what one draws depends on which have ended by then."""

    def begin(home: Path) -> subprocess.Popen[str]:
        options = ("--trials", str(TRIALS), "--workers", "1")
        return bench.start(search, home, *options, program=WITHOUT_MIRROR, verb="tune")

    search = write_search(tmp_path, TUNED, base={"algorithm": "grpo", **SETTINGS})
    code, stderr = bench.end(begin(tmp_path / "unbroken"))
    assert code == 0, stderr
    home = tmp_path / "home"
    storm = Storm(lambda: begin(home), home)
    through(storm, forecast(5, ["training", *MIDDLE], first=("start",)))  # what it needs of its base is no stage
    assert storm.kills == 10
    study, expected = (read_json(place / "found" / "study.json") for place in (home, tmp_path / "unbroken"))
    assert [trial["state"] for trial in study["trials"]] == ["complete"] * TRIALS
    assert without_own(study) == without_own(expected)
    assert_equal(home, tmp_path / "unbroken", "found")


def is_at_work(home: Path, run: subprocess.Popen[str]) -> bool:
    """Whether a worker of the run has a cell."""
    alive = bench.processes_of(run.pid)
    return any(pid in alive and moment.phase in OF_WORKERS[1:] for pid, moment in moments_of_leases(home))


@pytest.mark.slow
def test_two_runs_share_a_home_and_what_one_of_them_leaves_when_killed(
    sweep: Path, unbroken: Path, tmp_path: Path
) -> None:
    arms = ("--arms", "grpo,dpo_rounds")
    one, other = (bench.start(sweep, tmp_path, *arms, "--workers", "1") for _ in range(2))
    bench.wait_until(lambda: is_at_work(tmp_path, one) and is_at_work(tmp_path, other))
    bench.kill_all(one)
    bench.end(one)
    code, stderr = bench.end(other)
    assert code in (0, 1) and "Traceback" not in stderr, stderr
    code, stderr = bench.run_here(sweep, tmp_path, *arms)
    assert code == 0, stderr
    assert_cells_equal(tmp_path, unbroken)
    for cell in bench.cells(tmp_path).values():
        assert cell.log.read_text().count("done at") == 1
