"""Whole cells on vLLM, on the tiny model with wide heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.engines.vllm import engine as vllm_engine
from harness.executors.base import JobState
from harness.models.language_model import LanguageModel
from harness.models.start import StartingPoint
from harness.records import CellRecord
from harness.run.worker import run_job
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import job_of

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

SETTINGS = {"rollout.engine": "vllm", "train.steps": 3, "eval.problems": 2}


@pytest.fixture(scope="module")
def source(language_model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    language_model.save(folder)
    return f"path:{folder}"


def run(folder: Path, source: str, settings: dict[str, Any]) -> tuple[JobState, str | None, CellRecord]:
    folder.mkdir()
    spec = small_spec(SETTINGS | {"model.source": source} | settings)
    job = job_of("cell", folder, spec, folder.parent)
    state, reason = run_job(job, folder.parent, StartingPoint(), lambda event: None)
    return state, reason, CellRecord.at(folder)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


SETTINGS_OF_KINDS: dict[str, dict[str, Any]] = {
    "policy": {},
    "frozen start": {"rollout.sampler": "initial", "objective.rule.type": "policy_gradient"},
    "adapters": {"model.lora": {"type": "lora", "rank": 4}},
}


@pytest.mark.parametrize("kind", SETTINGS_OF_KINDS)
def test_a_cell_trains_on_what_its_weights_give(tmp_path: Path, source: str, kind: str) -> None:
    state, reason, cell = run(tmp_path / "arm-s0-0123456789", source, SETTINGS_OF_KINDS[kind])
    assert (state, reason) == ("done", None)
    steps, timing = lines(cell.path / "steps.jsonl"), lines(cell.path / "timing.jsonl")
    assert len(steps) == 3
    for step in steps if kind != "frozen start" else steps[:1]:
        assert step["mismatch/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert step["mismatch/ratio_max"] == pytest.approx(1, abs=1e-3)
    rollouts = [row for row in timing if "rollout_s" in row]
    assert len(rollouts) == 3
    assert all(row["sync_s"] > 0 and row["decode_s"] > 0 and row["prefill_s"] == 0 for row in rollouts)


def test_it_draws_in_the_precision_that_is_asked_for(tmp_path: Path, source: str) -> None:
    """Rounded weights are further off than rounding in float32, and a head in float32 takes a part of the difference
    away."""
    narrow = {"model.dtype": "bfloat16"}
    k2 = {}
    for name, settings in {
        "rounded": {"rollout.dtype": "bfloat16"},
        "narrow": narrow,
        "narrow-headed": narrow | {"model.head_dtype": "float32"},
    }.items():
        state, reason, cell = run(tmp_path / f"{name}-s0-0123456789", source, settings)
        assert (state, reason) == ("done", None)
        steps = lines(cell.path / "steps.jsonl")
        assert all(step["mismatch/ratio_mean"] == pytest.approx(1, abs=0.02) for step in steps)
        k2[name] = sum(step["mismatch/k2"] for step in steps)
    assert k2["rounded"] > 1e-6
    assert 0 < k2["narrow-headed"] < 0.8 * k2["narrow"]


def test_two_cells_are_the_same_bits(tmp_path: Path, source: str) -> None:
    digests = [run(tmp_path / f"{arm}-s0-0123456789", source, {})[2].digest for arm in ("one", "other")]
    assert digests[0] is not None
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_each_process_of_a_cell_draws_with_a_vllm_of_its_own(tmp_path: Path, source: str) -> None:
    alone = run(tmp_path / "alone-s0-0123456789", source, {})[2]
    settings = {"train.processes": 2, "train.sharding": "fully"}
    state, reason, together = run(tmp_path / "together-s0-0123456789", source, settings)
    assert (state, reason) == ("done", None)
    for row, expected in zip(together.read_steps(), alone.read_steps(), strict=True):
        assert row["mismatch/ratio_max"] == pytest.approx(1, abs=1e-3)
        assert (row["reward/mean"], row["len/mean"]) == (expected["reward/mean"], expected["len/mean"])


def test_stale_weights_end_a_cell_as_invalid(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes the first weights over and none after that."""
    write = vllm_engine._Resident._write
    written: list[Any] = []

    def write_once(resident: vllm_engine._Resident, model: Any) -> None:
        if not written:
            write(resident, model)
        written.append(model)

    monkeypatch.setattr(vllm_engine._Resident, "_write", write_once)
    state, reason, cell = run(tmp_path / "arm-s0-0123456789", source, {"train.learning_rate": 1e-2})
    assert state == "invalid"
    assert reason is not None and "vLLM does not use the weights that are trained" in reason
    assert len(written) == 2
    assert len(lines(cell.path / "steps.jsonl")) == 1


def test_weights_of_another_run_are_not_trained_on(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = vllm_engine._Resident._write

    def spoil(resident: vllm_engine._Resident, model: Any) -> None:
        write(resident, model)
        with torch.no_grad():
            model.get_output_embeddings().weight[3] += 0.1

    monkeypatch.setattr(vllm_engine._Resident, "_write", spoil)
    state, _, cell = run(tmp_path / "arm-s0-0123456789", source, {})
    assert state == "invalid"
    assert not (cell.path / "steps.jsonl").exists() or not lines(cell.path / "steps.jsonl")
