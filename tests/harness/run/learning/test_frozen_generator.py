"""A cell whose reward asks another model: it is loaded beside the policy, recorded, and saved nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.executors.base import Job
from harness.models.language_model import LanguageModel
from harness.models.start import StartingPoint
from harness.models.tiny import tiny_model, tiny_tokenizer
from harness.records import CellRecord
from harness.records.files import write_json
from harness.run.worker import run_job
from harness.training.checkpoint import checkpoint_folders
from tests.harness.run.small import small_spec

CELL = "sweep/cells/arm-s0-0000000000"
SETTINGS = {
    "train.steps": 1,
    "train.reference_rows": 0,
    "eval.every": 0,
    "eval.problems": 1,
    "eval.samples": 1,
    "reward.parts": {"correct": 0.0, "vr_cli": 1.0},
}


@pytest.mark.slow
def test_a_generator_of_its_own_rewards_and_is_not_saved(tmp_path: Path) -> None:
    LanguageModel(tiny_model(seed=1), tiny_tokenizer()).save(tmp_path / "other")
    other = {"reward.vr_cli.generator": f"path:{tmp_path / 'other'}"}
    start, cells = StartingPoint(), {}
    for name, settings in {"start": {}, "other": other}.items():
        spec = small_spec(SETTINGS | settings)
        (tmp_path / name / CELL).mkdir(parents=True)
        write_json(tmp_path / name / CELL / "spec.json", spec.model_dump(mode="json"))
        assert run_job(Job("cell", CELL, spec), tmp_path / name, start, lambda event: None) == ("done", None)
        cells[name] = CellRecord.at(tmp_path / name / CELL)
    by_start, by_other = (cells[name].read_steps()[0] for name in ("start", "other"))
    assert by_start["reward/correct"] == by_other["reward/correct"], "one draw of completions"
    assert by_start["reward/vr_cli"] != by_other["reward/vr_cli"]
    assert "generator" not in cells["start"].provenance
    assert cells["other"].provenance["generator"]["architecture"] == "LlamaForCausalLM"
    weights, trainers = [], []
    for cell in cells.values():
        folder = checkpoint_folders(cell.checkpoints)[-1]
        weights.append(load_file(folder / "weights.safetensors").keys())
        trainers.append((folder / "trainer.pt").stat().st_size)
    assert weights[0] == weights[1]
    assert trainers[0] == pytest.approx(trainers[1], rel=0.01)
    policy = {name: tensor.shape for name, tensor in tiny_model(seed=1).state_dict().items()}
    saved = load_file(checkpoint_folders(cells["other"].checkpoints)[-1] / "weights.safetensors")
    assert {name: tensor.shape for name, tensor in saved.items()}.items() <= policy.items()
    assert all(torch.isfinite(tensor).all() for tensor in saved.values())
