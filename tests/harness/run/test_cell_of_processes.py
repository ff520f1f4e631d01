"""A cell that several processes train: whole cells, through the worker that starts the processes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from harness.config.run_spec import RunSpec
from harness.executors.base import Ended, Event, Job, Progress
from harness.executors.local import LocalPool
from harness.executors.slots import Slot
from harness.models.start import StartingPoint
from harness.processes import Interrupted
from harness.records import CellRecord
from harness.records.files import write_json
from harness.records.lease import is_leased
from harness.run.stages import find_stage, result_path
from harness.run.worker import run_job
from harness.training.checkpoint import checkpoint_folders
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import job_of

pytestmark = pytest.mark.slow

CELL = "sweep/cells/arm-s0-0000000000"
SETTINGS: dict[str, Any] = {
    **{"train.steps": 6, "train.checkpoint_every": 1, "train.learning_rate": 1e-4, "eval.every": 3},
    **{"rollout.max_completion_tokens": 16, "eval.max_completion_tokens": 16},
}


def spec_of(processes: int = 1, sharding: str = "rows", **settings: Any) -> RunSpec:
    named = {"train.processes": processes, "train.sharding": sharding}
    return small_spec(SETTINGS | named | {key.replace("__", "."): value for key, value in settings.items()})


def run(home: Path, spec: RunSpec, tell: Callable[[Event], None] = lambda event: None) -> tuple[str, str | None]:
    cell = home / CELL
    cell.mkdir(parents=True, exist_ok=True)
    write_json(cell / "spec.json", spec.model_dump(mode="json"))
    return run_job(Job("cell", CELL, spec), home, StartingPoint(), tell)


def stop_at(step: int) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if event.get("step") == step:
            raise Interrupted

    return tell


def weights(home: Path) -> dict[str, Tensor]:
    return load_file(checkpoint_folders((home / CELL) / "checkpoints")[-1] / "weights.safetensors")


def processes_of(home: Path) -> dict[int, int]:
    """RANK -> pid of the workers of a home that are one of several."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().split("\0")
            environment = dict(pair.partition("=")[::2] for pair in (folder / "environ").read_text().split("\0"))
        except OSError:
            continue
        if str(home) in command and "RANK" in environment:
            found[int(environment["RANK"])] = int(folder.name)
    return found


def test_a_cell_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    together, alone = tmp_path / "together", tmp_path / "alone"
    assert run(alone, spec_of()) == ("done", None)
    with pytest.raises(Interrupted):
        run(together, spec_of(2), stop_at(2))
    assert processes_of(together) == {}
    with pytest.raises(Interrupted):
        run(together, spec_of(), stop_at(4))
    assert run(together, spec_of(2, "fully")) == ("done", None)

    cell, expected = CellRecord.at(together / CELL), CellRecord.at(alone / CELL)
    starts = [(row["processes"], row.get("sharding")) for row in cell.provenances]
    assert starts == [(2, "rows"), (1, None), (2, "fully")]
    ended = weights(together)
    assert max(float((ended[name] - weight).abs().max()) for name, weight in weights(alone).items()) < 5e-5
    for row, other in zip(cell.read_steps(), expected.read_steps(), strict=True):
        assert row["reward/mean"] == other["reward/mean"]
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
    assert [row["metrics"] for row in cell.read_scores()] == [row["metrics"] for row in expected.read_scores()]


def test_an_evaluation_that_is_interrupted_leaves_a_checkpoint(tmp_path: Path) -> None:
    """The other process is left in the call in which it draws its share."""

    def interrupt(signum: int, frame: object) -> None:
        raise Interrupted

    def evaluating(event: Event) -> None:
        if event.get("step") == 3:
            signal.setitimer(signal.ITIMER_REAL, 1.0)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            run(tmp_path, spec_of(2, train__checkpoint_every=1000, eval__curve_samples=512), evaluating)
    finally:
        signal.signal(signal.SIGALRM, before)
    cell = CellRecord.at(tmp_path / CELL)
    assert cell.state == "interrupted"
    assert [path.name for path in checkpoint_folders(cell.checkpoints)] == ["step-000000", "step-000003"]


def test_one_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    """Its cell is free at once, for it is to be started once more."""
    spec, folder = spec_of(2, train__steps=1000), tmp_path / CELL
    folder.mkdir(parents=True)
    write_json(folder / "spec.json", spec.model_dump(mode="json"))
    pool, job = LocalPool([Slot("cpu", "")], tmp_path, "harness.run.worker"), Job("cell", CELL, spec)
    try:
        pool.start(job)
        while not any(isinstance(one, Progress) and one.event.get("step") == 2 for one in pool.wait(1.0)):
            pass
        assert len(processes_of(tmp_path)) == 2
        pool.kill(job)
        while not any(isinstance(one, Ended) for one in pool.wait(1.0)):
            pass
        began_s = time.monotonic()
        while is_leased(folder):  # the last of them takes a moment to go
            assert time.monotonic() - began_s < 2
            time.sleep(0.01)
    finally:
        pool.close()


def test_a_process_that_dies_ends_the_cell(tmp_path: Path) -> None:
    def kill(event: Event) -> None:
        if event.get("step") == 2 and 1 in (there := processes_of(tmp_path)):
            os.kill(there[1], signal.SIGKILL)

    state, reason = run(tmp_path, spec_of(2, train__steps=1000), kill)
    assert state == "failed" and "signal 9" in str(reason)
    assert processes_of(tmp_path) == {}


def test_two_processes_are_judged_as_one_is(tmp_path: Path) -> None:
    options = {"prompts": 20, "samples_per_prompt": 4, "cold_start_steps": 20, "steps": 1, "batch_size": 8}
    judged: dict[str, Any] = {
        **{"algorithm": "brpo", "reward__parts": {"correct": 0.0, "pairwise": 1.0}},
        **{f"reward__pairwise__{name}": value for name, value in options.items()},
        **{"train__steps": 1, "eval__every": 0},
    }
    together, alone = tmp_path / "together", tmp_path / "alone"
    made = result_path(find_stage("judge"), spec_of(**judged), alone)
    assert (
        run_job(job_of("judge", made, spec_of(**judged), alone), alone, StartingPoint(), lambda event: None)[0]
        == "done"
    )
    shutil.copytree(alone / "cache", together / "cache")
    assert run(alone, spec_of(**judged)) == run(together, spec_of(2, **judged)) == ("done", None)
    (row,), (expected,) = (CellRecord.at(home / CELL).read_steps() for home in (together, alone))
    for name in ("reward/mean", "judge/flip_frac", "judge/first_frac", "judge/tie_frac", "judge/right_frac"):
        assert row[name] == expected[name], name
    assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3, abs=1e-6)


def test_two_processes_draw_from_older_weights_in_slices_and_learn_gold_answers_as_one_does(tmp_path: Path) -> None:
    """Also where the other process has been started anew, and knows of them by the first alone."""
    stale: dict[str, Any] = {
        "rollout__staleness_steps": 1,
        "rollout__partial": {"type": "slices", "slice_tokens": 8},
        "objective__sampler_correction__type": "token_truncate",
        "reward__parts": {"correct": 1.0, "vr_cli": 0.5, "jepo": 0.5},
        "train__steps": 4,
        "eval__every": 0,
    }
    together, alone = tmp_path / "together", tmp_path / "alone"
    assert run(alone, spec_of(**stale)) == ("done", None)
    with pytest.raises(Interrupted):
        run(together, spec_of(2, **stale), stop_at(3))
    assert run(together, spec_of(2, **stale)) == ("done", None)
    cell, expected = CellRecord.at(together / CELL), CellRecord.at(alone / CELL)
    for row, other in zip(cell.read_steps(), expected.read_steps(), strict=True):
        for name in ("reward/correct", "staleness/steps_mean", "staleness/prompts_under_way"):
            assert row[name] == other[name], name
        assert row["mismatch/k3"] == pytest.approx(other["mismatch/k3"], rel=1e-2, abs=1e-6)
        for name in ("gold/answer_logp", "gold/improvement", "loss/answer", "grad_norm"):
            assert row[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    assert cell.read_steps()[-1]["staleness/steps_mean"] > 1
