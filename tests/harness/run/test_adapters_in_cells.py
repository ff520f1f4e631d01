"""A cell that trains adapters: from the start to its record, and on again after a stop."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.config.run_spec import RunSpec
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
from tests.harness.run.small import ignore_progress, small_spec
from tests.harness.run.stages_here import Quiet, StagesHere, job_of

pytestmark = pytest.mark.slow

LORA = {"model.lora.type": "lora", "model.lora.rank": 4, "train.learning_rate": 3e-3}


class StoppedError(Exception):
    pass


def run(folder: Path, spec: RunSpec, start: StartingPoint | None = None, stop_after: int | None = None) -> CellRecord:
    def stop(progress: Any) -> None:
        if progress["step"] == stop_after:
            raise StoppedError

    folder.mkdir(exist_ok=True)
    cell = CellRecord.at(folder)
    begin = partial((start or StartingPoint()).for_training, spec, spec.model.source)
    examples = Examples(training_prompts(spec, {}))
    CellRun(cell, spec, begin, examples, ignore_progress if stop_after is None else stop).run()
    return cell


def weights(cell: CellRecord) -> dict[str, torch.Tensor]:
    return load_file(checkpoint_folders(cell.checkpoints)[-1] / "weights.safetensors")


@pytest.mark.parametrize(
    "settings",
    [
        LORA,
        LORA | {"model.dtype": "bfloat16"},
        {"model.dtype": "bfloat16"},
        LORA | {"objective.kl.where": "loss", "objective.kl.beta": 0.1, "train.activation_checkpointing": True},
        LORA | {"algorithm": "ppo"},
    ],
    ids=["adapters", "adapters in bfloat16", "bfloat16", "adapters with a reference", "adapters with a critic"],
)
def test_a_resumed_cell_ends_as_an_unbroken_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    spec = small_spec(settings)
    unbroken = run(tmp_path / "a-s0-0000000000", spec)
    with pytest.raises(StoppedError):
        run(tmp_path / "b-s0-0000000000", spec, stop_after=3)
    resumed = run(tmp_path / "b-s0-0000000000", spec)
    assert resumed.read_steps() == unbroken.read_steps()
    assert resumed.read_status()["digest"] == unbroken.read_status()["digest"]


def test_a_checkpoint_holds_the_adapters_alone_and_they_move(tmp_path: Path) -> None:
    start = StartingPoint()
    cell = run(tmp_path / "a-s0-0000000000", small_spec(LORA), start)
    saved = weights(cell)
    assert len(saved) == 28 and all("lora" in name for name in saved)
    assert all(saved[name].any() for name in saved if "lora_B" in name)
    base = load_model("builtin:tiny").model
    assert start._adapted is not None
    layers = adapted_layers(start._adapted[1])
    assert all(torch.equal(layer.base.weight, base.get_submodule(layer.name).weight) for layer in layers)


def test_sampler_and_trainer_agree(tmp_path: Path) -> None:
    """Step after step, though the one draws from merged weights."""
    cell = run(tmp_path / "a-s0-0000000000", small_spec(LORA))
    ratios = [step["mismatch/ratio_max"] for step in cell.read_steps()]
    assert len(ratios) == 4
    assert ratios == pytest.approx([1.0] * 4, abs=1e-3)


def test_cells_of_one_worker_do_not_see_each_other(tmp_path: Path) -> None:
    start = StartingPoint()
    digests = [
        run(tmp_path / f"{name}-s0-0000000000", small_spec(settings), start).read_status()["digest"]
        for name, settings in (("a", LORA), ("b", {}), ("c", LORA), ("d", {}))
    ]
    assert digests[0] == digests[2] != digests[1] == digests[3]
    alone = run(tmp_path / "e-s0-0000000000", small_spec(LORA)).read_status()["digest"]
    assert alone == digests[0]


def test_provenance_says_what_was_loaded(tmp_path: Path) -> None:
    spec = small_spec(LORA | {"train.steps": 1, "eval.every": 0})
    folder = tmp_path / "a-s0-0000000000"
    folder.mkdir()
    assert run_job(job_of("cell", folder, spec, tmp_path), tmp_path, StartingPoint(), lambda event: None) == (
        "done",
        None,
    )
    model = CellRecord.at(folder).provenance["model"]
    assert (model["dtype"], model["chat_template"], model["eos_token_ids"]) == ("float32", "plain", [1])
    assert model["remarks"] == ["chat template: plain (messages joined by blank lines); the tokenizer has none"]


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
    with pytest.raises(RefusedError, match="names query, but the linear layers" if peft else "pip install -e"):
        SweepRun(make_plan(str(sweep)), tmp_path, "bench run", 1, lambda slots: executor).run(Quiet())
    assert {job.kind for job in executor.jobs} == {"load"}
