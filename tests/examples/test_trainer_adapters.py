"""The adapters of other trainers, with a stand-in for each trainer that keeps to its settings and files but learns
nothing. What verl itself says to the settings is in test_verl.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import plugins
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.models.start import StartingPoint
from harness.records import CellRecord
from harness.records.files import write_json
from harness.run.sweep import cell_job
from harness.run.worker import run_job
from tests.harness.run.small import SETTINGS
from tests.harness.run.test_worker import ignore

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
STAND_INS = Path(__file__).parent / "stand_ins"
STEPS = {"train.steps": 6, "train.checkpoint_every": 2, "eval.every": 4, "eval.samples": 1, "eval.curve_samples": 1}
DRAWN_TOKENS = 40
"""Of a step: 4 prompts, 4 samples, 2.5 tokens on average."""


def spec_of(adapter: str, mode: str | None = None, **settings: Any) -> RunSpec:
    """The small spec with the shipped sweep's trainer, which finds a stand-in where its trainer would be."""
    plugins.use([], [EXAMPLES / adapter])
    sweep = yaml.safe_load((EXAMPLES / adapter / "sweep.yaml").read_text())
    (shipped,) = (arm["trainer"] for arm in sweep["arms"].values() if "trainer" in arm)
    trainer = {
        **shipped,
        "run": "{python} train.py {config}",
        "env": {"PYTHONPATH": f"{STAND_INS}:{EXAMPLES.parents[1]}"},
        "args": {"overrides": [f'+stand_in="{mode}"'] if mode else []},
    }
    return resolve([Layer("small", SETTINGS | STEPS), Layer("test", {"trainer": trainer, **settings})], seed=1)


@pytest.fixture(autouse=True)
def _without_plugins() -> Iterator[None]:
    yield
    plugins.use([], [])


def run(spec: RunSpec, home: Path) -> tuple[CellRecord, str, str]:
    """The cell in a home, as a job in this process; its state and the reason."""
    record = CellRecord.at(home / "s" / "cells" / "theirs-s1-0123456789")
    if not record.path.exists():
        record.path.mkdir(parents=True)
        write_json(record.path / "spec.json", spec.model_dump(mode="json"))
    state, reason = run_job(cell_job(record, spec, home), home, StartingPoint(), ignore)
    return record, state, str(reason)


@pytest.mark.slow
def test_a_cell_that_verl_trains_is_a_cell(tmp_path: Path) -> None:
    cell, state, reason = run(spec_of("verl"), tmp_path)
    assert (state, cell.step, cell.generated_tokens, cell.flags) == ("done", 6, 6 * DRAWN_TOKENS, []), reason
    rows = cell.read_steps()
    assert [row["generated_tokens"] for row in rows] == [DRAWN_TOKENS * step for step in range(1, 7)]
    assert rows[1]["reward/mean"] == 0.2 and rows[1]["grad_norm"] == 0.5
    assert [(row["step"], row["final"]) for row in cell.read_scores()] == [(4, False), (6, True)]


@pytest.mark.slow
def test_a_cell_of_verl_that_died_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    cell, state, reason = run(spec_of("verl", "dies"), tmp_path)
    assert state == "refused"
    assert re.search(r"exit code 9 after step 2\. Its last lines:\n(.*\n)*  CUDA out of memory", reason), reason
    cell, state, reason = run(spec_of("verl", "dies"), tmp_path)
    assert state == "done", reason
    assert [start["from_step"] for start in cell.read_starts()] == [0, 2]
    assert "Training from step 2" in cell.log.read_text()
    assert [row["generated_tokens"] for row in cell.read_steps()] == [DRAWN_TOKENS * step for step in range(1, 7)]


@pytest.mark.slow
def test_a_budget_of_tokens_ends_verl_with_the_step_that_uses_it(tmp_path: Path) -> None:
    cell, state, reason = run(spec_of("verl", **{"budget.tokens": 2 * DRAWN_TOKENS + 1}), tmp_path)
    assert (state, cell.step, cell.generated_tokens) == ("done", 3, 3 * DRAWN_TOKENS), reason


@pytest.mark.slow
def test_a_gradient_of_verl_that_is_nan_is_seen(tmp_path: Path) -> None:
    cell, state, reason = run(spec_of("verl", "diverges"), tmp_path)
    assert (state, cell.step, cell.flags) == ("done", 2, ["nan"]), reason
    assert str(cell.reason).startswith("diverged (actor/grad_norm is nan at step 3)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "dapo"}, r"verl cannot express these settings of the objective: zero_std"),
        ({"trainer.args": {"overrides": ["data.shuffle=true"]}}, r"overrides sets what bench decides: data\.shuffle"),
    ],
)
def test_what_verl_cannot_do_is_said_before_it_starts(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, state, reason = run(spec_of("verl", **settings), tmp_path)
    assert state == "refused" and re.search(message, reason), reason
