"""A small spec, written out: these tests do not depend on the shipped sweeps and profiles."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.executors.base import Event
from harness.models.start import StartingPoint
from harness.processes import Stopping
from harness.records import CellRecord
from harness.run.cell import CellRun
from harness.run.learning.base import Examples
from harness.run.prompts import training_prompts

SETTINGS: dict[str, Any] = {
    "algorithm": "grpo",
    "model.source": "builtin:tiny",
    "task.train": "arithmetic",
    "rollout.prompts_per_step": 4,
    "rollout.samples_per_prompt": 4,
    "rollout.max_completion_tokens": 32,
    "train.device": "cpu",
    "train.steps": 4,
    "train.learning_rate": 3e-4,
    "train.micro_batch_tokens": 512,
    "train.checkpoint_every": 2,
    "eval.problems": 8,
    "eval.every": 2,
    "eval.curve_samples": 2,
    "eval.samples": 4,
    "eval.max_completion_tokens": 32,
}


NEED_TEACHER = ("kd", "gkd", "opd")
TEACHER = {"teacher.type": "model", "teacher.template": "solution_shown"}
"""The start itself, which is shown the solution: what these algorithms learn from unless a test says otherwise."""


def small_spec(settings: dict[str, Any] | None = None, seed: int = 0) -> RunSpec:
    """The small spec with other settings (dotted) on top."""
    settings = settings or {}
    taught = TEACHER if settings.get("algorithm") in NEED_TEACHER else {}
    return resolve([Layer("small", SETTINGS | taught), Layer("test", settings)], seed)


def run_cell(cell: CellRecord, spec: RunSpec, stopping: Stopping | None = None) -> None:
    """One cell in this process, from the starting weights."""
    begin = partial(StartingPoint().for_training, spec, spec.model.source)
    source = None if spec.teacher.type == "none" else spec.teacher.source
    teacher = None if source is None else StartingPoint().teacher(spec, source).model
    examples = Examples(training_prompts(spec, {}), teacher=teacher)
    CellRun(cell, spec, begin, examples, ignore_progress, stopping=stopping).run()


def new_cell(folder: Path) -> CellRecord:
    """The record of a cell in this folder, which may be there."""
    folder.mkdir(parents=True, exist_ok=True)
    return CellRecord(folder, "arm", 0, "0")


def trained(folder: Path, settings: dict[str, Any] | None = None, seed: int = 0) -> CellRecord:
    """A cell, run to its end in this process; from its last checkpoint if there is one."""
    cell = new_cell(folder)
    run_cell(cell, small_spec(settings, seed))
    return cell


class Killed(BaseException):
    """As sudden as a signal: nothing of ours catches it."""


def trained_and_killed(
    folder: Path, settings: dict[str, Any], before_step: int, seed: int = 0
) -> tuple[CellRecord, CellRecord]:
    """A cell that ran through, and what a kill before this step would have left of it: a copy from then."""
    real = CellRun._train_step

    def train_step(run: CellRun) -> None:
        if run._step == before_step - 1:
            shutil.copytree(folder / "whole", folder / "killed")
        real(run)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CellRun, "_train_step", train_step)
        whole = trained(folder / "whole", settings, seed)
    return whole, new_cell(folder / "killed")


def ignore_progress(event: Event) -> None:
    pass
