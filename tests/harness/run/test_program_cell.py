"""Cells that a program trains: what it is given, what is recorded of it, how it ends, and how it survives a kill."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import plugins
from harness.config.hashing import user_code
from harness.config.knobs import knob_facts
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.executors.base import Event
from harness.models.start import StartingPoint
from harness.processes import Interrupted, Stopping
from harness.records import CellRecord
from harness.records.files import read_json, read_jsonl, write_json
from harness.run.prompts import places_of_step
from harness.run.sweep import cell_job
from harness.run.worker import run_job
from tests.harness.run import bench
from tests.harness.run.small import SETTINGS
from tests.harness.run.test_worker import ignore

PROGRAM = Path(__file__).parents[1] / "trainers" / "program.py"
EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
STEPS = {"train.steps": 6, "train.checkpoint_every": 2, "eval.every": 4, "eval.samples": 1, "eval.curve_samples": 1}


@pytest.fixture(autouse=True)
def _beside_the_program() -> Iterator[None]:
    plugins.use([], [PROGRAM.parent])
    yield
    plugins.use([], [])


def spec_of(settings: dict[str, Any] | None = None, **args: Any) -> RunSpec:
    own = {"type": "command", "run": "{python} program.py {config}", "files": ["program.py"], "args": args}
    base = {knob: value for knob, value in SETTINGS.items() if knob != "algorithm"}
    return resolve(
        [Layer("small", base | STEPS), Layer("test", {"trainer": own}), Layer("more", settings or {})], seed=1
    )


def run(
    spec: RunSpec, home: Path, stopping: Stopping | None = None, report: Callable[[Event], None] = ignore
) -> tuple[CellRecord, str, str]:
    """The cell in a home, as a job in this process; its state and the reason."""
    record = CellRecord.at(home / "s" / "cells" / "mine-s1-0123456789")
    if not record.path.exists():
        record.path.mkdir(parents=True)
        write_json(record.path / "spec.json", spec.model_dump(mode="json"))
    state, reason = run_job(cell_job(record, spec, home), home, StartingPoint(), report, stopping)
    return record, state, str(reason)


@pytest.mark.slow
def test_a_cell_of_a_program_is_a_cell(tmp_path: Path) -> None:
    spec = spec_of({"trainer.metrics": {"reward/mean": "mean"}}, lr=0.1)
    events: list[Event] = []
    cell, state, reason = run(spec, tmp_path, report=events.append)
    assert (state, cell.state, cell.step, cell.generated_tokens, cell.flags) == ("done", "done", 6, 60, []), reason
    assert [one["steps"] for one in events if str(one.get("phase")).startswith("evaluating")] == [0, 6]
    assert [row["generated_tokens"] for row in cell.read_steps()] == [10, 20, 30, 40, 50, 60]
    assert cell.read_steps()[1] == {"step": 2, "generated_tokens": 20, "program/loss": 0.5, "reward/mean": 0.2}
    assert [(row["step"], row["final"]) for row in cell.read_scores()] == [(4, False), (6, True)]

    config = read_json(cell.path / "program" / "e0001" / "config.json")
    assert config["args"] == {"lr": 0.1} and config["seed"] == 1 and config["budget"]["steps"] == 6
    assert config["knobs"]["rollout.prompts_per_step"] == 4 and "train.learning_rate" not in config["knobs"]
    rows = read_jsonl(cell.path / "program" / "prompts.jsonl")
    from evals.tasks import get_task

    pool = get_task("arithmetic").split("train").load()
    expected = [pool[place].id for step in range(1, 7) for place in places_of_step(len(pool), 1, step, 4)]
    assert [row["problem_id"] for row in rows] == expected
    assert [row["step"] for row in rows] == [1 + at // 4 for at in range(24)]

    # Its last weights, those of the start, are in a checkpoint like any other, and the program's are gone.
    from harness.models.language_model import load_model, weights_digest

    assert cell.digest == weights_digest(load_model("builtin:tiny").model.state_dict())
    assert [path.name for path in cell.checkpoints.glob("*")] == ["step-000006"]
    assert not [*cell.path.glob("program/*/step-*")]
    program = cell.provenance["program"]
    assert program["command"][-2:] == ["program.py", "{config}"] and "torch" in program["packages"]
    other = spec.model_copy(update={"eval": spec.eval.model_copy(update={"samples": 2, "k": (1, 2)})})
    _, state, reason = run(other, tmp_path)
    assert state == "done", reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("exit", r"code 3 after step 2\.\n.*\n  line 10\n(.*\n)+  line 29"),
        ("early", r"step 2 of 6"),
        ("no_final", r'step, 6, .*: \{"step": 6, "checkpoint": "step-6"\}'),
        ("overrun", r"used at step 6"),
        ("backwards", r"from 20 to 5"),
        ("shape", r"norm\.weight is \[1, \d+\]"),
        ("silent", r"silence_min=0\.03"),
    ],
)
def test_a_program_that_fails_says_how(mode: str, message: str, tmp_path: Path) -> None:
    cell, state, reason = run(spec_of({"trainer.silence_min": 0.03} if mode == "silent" else {}, mode=mode), tmp_path)
    assert state == "refused" and re.search(message, reason), reason
    assert not [*cell.path.glob("evals*")]


@pytest.mark.slow
def test_divergence_is_an_outcome_and_stays_one(tmp_path: Path) -> None:
    cell, state, reason = run(spec_of(mode="nan"), tmp_path)
    assert (state, cell.step, cell.flags) == ("done", 2, ["nan"]), reason
    assert "step 4" in str(cell.reason)
    assert len(cell.read_steps()) == 2


@pytest.mark.slow
def test_a_budget_of_tokens_ends_a_cell_at_the_first_checkpoint_behind_it(tmp_path: Path) -> None:
    """The program knows no budget of tokens: it goes on, and is stopped; its checkpoint of step 2 has them all."""
    cell, state, reason = run(spec_of({"budget.tokens": 15}, sleep=0.3), tmp_path)
    assert (state, cell.step, cell.generated_tokens) == ("done", 2, 20), reason
    assert len(cell.read_steps()) == 2


@pytest.mark.slow
def test_an_interrupted_cell_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    stopping = Stopping()
    signal.signal(signal.SIGALRM, lambda number, frame: stopping.ask())
    signal.setitimer(signal.ITIMER_REAL, 6.0)
    spec = spec_of(sleep=1.5, mode="family")
    with pytest.raises(Interrupted):
        run(spec, tmp_path, stopping)
    cell, state, reason = run(spec_of(), tmp_path)
    assert state == "done", reason
    first, second = cell.read_starts()
    assert first["from_step"] == 0 and second["from_step"] in (2, 4)
    assert f"resumes from {second['from_step']}" in cell.log.read_text()
    assert [row["step"] for row in cell.read_steps()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_program_that_changes_while_it_runs_makes_the_cell_invalid(tmp_path: Path) -> None:
    code = PROGRAM.read_text()
    (tmp_path / "program.py").write_text(code + "\nimport helper\nhelper.change()\n")
    change = "from pathlib import Path\ndef change():\n    Path(__file__).write_text('# other\\n')\n"
    (tmp_path / "helper.py").write_text(change)
    plugins.use([], [tmp_path])
    _, state, reason = run(spec_of(), tmp_path / "home")
    assert state == "invalid" and "helper.py" in reason


@pytest.mark.slow
def test_a_trainer_can_be_a_plug_in_with_knobs_of_its_own(tmp_path: Path) -> None:
    plugins.use(["trainer"], [EXTENDING])
    own: dict[str, Any] = {"trainer": {"type": "copying", "pause_s": 0.1}, "eval.every": 0, "eval.samples": 1}
    base = {knob: value for knob, value in SETTINGS.items() if knob != "algorithm"}
    with pytest.raises(RefusedError, match=r"eval\.every=2"):
        resolve([Layer("small", base), Layer("test", own | {"eval.every": 2})], seed=1)
    spec = resolve([Layer("small", base), Layer("test", own)], seed=1)
    assert {"trainer.pause_s", "trainer.args"} <= set(knob_facts())
    assert [module.name for module in user_code(spec)] == ["trainer"]
    cell, state, reason = run(spec, tmp_path)
    assert (state, cell.step) == ("done", 4), reason
    plugins.use([], [EXTENDING])
    assert "trainer.pause_s" not in knob_facts()


def write_sweep(folder: Path, seeds: int, steps: int = 8, **args: Any) -> Path:
    program = {"type": "command", "run": "{python} program.py {config}", "files": ["program.py"], "args": args}
    path = bench.write_sweep(folder, {"bench": {}, "mine": {"trainer": program}}, seeds=seeds)
    (folder / "program.py").write_text(PROGRAM.read_text())
    document = yaml.safe_load(path.read_text())
    lengths = {"train.steps": steps, "train.checkpoint_every": 2, "eval.every": 4}
    document["base"] |= lengths | {"eval.problems": 8, "eval.samples": 2, "eval.curve_samples": 1}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


@pytest.mark.slow
def test_page_terminal_and_json_say_what_a_program_cannot_promise(tmp_path: Path) -> None:
    code, printed = bench.run_here(write_sweep(tmp_path, 2, steps=4), tmp_path / "runs", page=True)
    assert code == 0, printed
    report = tmp_path / "runs" / "small" / "report"
    (contrast,) = json.loads((report / "report.json").read_text())["contrasts"]
    for text in (printed, *contrast["warnings"][:1], (report / "report.md").read_text()):
        assert "outside of bench" in text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(("kills", "n_cells"), [(3, 1), pytest.param(10, 4, marks=pytest.mark.long)])
def test_kills_at_random_change_nothing(tmp_path: Path, kills: int, n_cells: int) -> None:
    """A worker, the parent or all processes are killed while programs train; no program outlives them, and the cells
    end as without."""
    # Two steps, from one checkpoint to the next, take longer than a start lives: hardly a start gets a cell further.
    sweep, home = write_sweep(tmp_path, n_cells, sleep=1.6), tmp_path / "runs"
    draw = random.Random(7)
    for _ in range(kills):
        started = len(starts_of_programs(home))
        process = bench.start(sweep, home, "--arms", "mine")
        bench.wait_until(lambda: len(starts_of_programs(home)) > started or process.poll() is not None)  # noqa: B023
        time.sleep(draw.uniform(0.0, 3.0))
        if process.poll() is not None:
            pytest.fail(f"it ended before it could be killed, with code {process.poll()}: {process.communicate()}")
        who = draw.choice(("worker", "parent", "all"))
        if who == "worker":
            os.kill(draw.choice(bench.workers_of(process)), signal.SIGKILL)
            time.sleep(1.0)
        if who == "all":
            bench.kill_all(process)
        else:
            process.kill()
        bench.wait_until(lambda: not bench.processes_of(process.pid), 40)  # noqa: B023
        process.communicate()
    code, printed = bench.run(sweep, home, "--arms", "mine")
    assert code == 0, printed
    cells = bench.cells(home).values()
    assert len(cells) == n_cells and sum(len(cell.read_starts()) for cell in cells) >= kills
    for cell in cells:
        assert cell.state == "done"
        assert [row["generated_tokens"] for row in cell.read_steps()] == list(range(10, 90, 10))
        assert [(row["step"], row["final"]) for row in cell.read_scores()] == [(4, False), (8, True)]


def starts_of_programs(home: Path) -> list[Path]:
    """The metrics of every start of a program that has written some."""
    return [*home.glob("small/cells/*/program/e*/metrics.jsonl")]
