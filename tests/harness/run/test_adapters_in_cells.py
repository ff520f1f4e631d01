"""A cell that trains adapters: from the start to its record, and on again after a stop."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.errors import RefusedError
from harness.models.language_model import load_model
from harness.models.lora import adapted_layers
from harness.models.start import StartingPoint
from harness.plan import make_plan
from harness.records import CellRecord
from harness.run.cell import CellRun
from harness.run.learning.base import Examples
from harness.run.prompts import training_prompts
from harness.run.sweep import SweepRun
from harness.run.worker import run_job
from harness.training.checkpoint import checkpoint_folders
from tests.harness.run.small import ignore_progress, new_cell, small_spec
from tests.harness.run.stages_here import Quiet, StagesHere, job_of

pytestmark = pytest.mark.slow

LORA = {"model.lora.type": "lora", "model.lora.rank": 4, "train.learning_rate": 3e-3}


def run(folder: Path, settings: dict[str, Any], start: StartingPoint | None = None) -> CellRecord:
    spec, cell = small_spec(settings), new_cell(folder)
    begin = partial((start or StartingPoint()).for_training, spec, spec.model.source)
    CellRun(cell, spec, begin, Examples(training_prompts(spec, {})), ignore_progress).run()
    return cell


def test_a_checkpoint_holds_the_adapters_alone_and_they_move(tmp_path: Path) -> None:
    start = StartingPoint()
    cell = run(tmp_path, LORA, start)
    saved = load_file(checkpoint_folders(cell.checkpoints)[-1] / "weights.safetensors")
    assert len(saved) == 28 and all("lora" in name for name in saved)
    assert all(saved[name].any() for name in saved if "lora_B" in name)
    base = load_model("builtin:tiny").model
    assert start._adapted is not None
    layers = adapted_layers(start._adapted[1])
    assert all(torch.equal(layer.base.weight, base.get_submodule(layer.name).weight) for layer in layers)
    # Sampler and trainer agree step after step, though the one draws from merged weights.
    assert [step["mismatch/ratio_max"] for step in cell.read_steps()] == pytest.approx([1.0] * 4, abs=1e-3)


def test_cells_of_one_worker_do_not_see_each_other(tmp_path: Path) -> None:
    start = StartingPoint()
    quick: dict[str, Any] = {"train.steps": 2, "eval.every": 0, "eval.problems": 2}
    digests = [
        run(tmp_path / name, quick | settings, shared).read_status()["digest"]
        for name, settings, shared in (("a", LORA, start), ("b", {}, start), ("c", LORA, start), ("d", LORA, None))
    ]
    assert digests[0] == digests[2] == digests[3] != digests[1]
    assert run(tmp_path / "e", quick, start).read_status()["digest"] == digests[1]


def test_provenance_says_what_was_loaded(tmp_path: Path) -> None:
    spec, cell = small_spec(LORA | {"train.steps": 1, "eval.every": 0}), new_cell(tmp_path / "a-s0-0000000000")
    job = job_of("cell", cell.path, spec, tmp_path)
    assert run_job(job, tmp_path, StartingPoint(), ignore_progress) == ("done", None)
    model = cell.provenance["model"]
    assert (model["dtype"], model["chat_template"], model["eos_token_ids"]) == ("float32", "plain", [1])
    assert len(model["remarks"]) == 1


@pytest.mark.parametrize("peft", [True, False])
def test_adapters_that_cannot_be_made_are_refused_before_any_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peft: bool
) -> None:
    """Also where another arm without any is looked at first."""
    sweep = tmp_path / "adapters.yaml"
    sweep.write_text(
        "name: adapters\nquestion: Do adapters do?\nprofile: tiny\nablate: [model.lora]\nbase: {algorithm: grpo}\n"
        "arms:\n  whole: {}\n  adapters: {model.lora.type: lora"
        + (", model.lora.target_modules: [query]" if peft else "")
        + "}\nseeds: 1\ncompare: {baseline: whole, metric: 'eval.final.pass@1'}\n"
    )
    if not peft:
        monkeypatch.setitem(sys.modules, "peft", None)
    executor = StagesHere(tmp_path)
    with pytest.raises(RefusedError, match="query" if peft else "peft"):
        SweepRun(make_plan(str(sweep)), tmp_path, "bench run", 1, lambda slots: executor).run(Quiet())
    assert {job.kind for job in executor.jobs} == {"load"}
