"""A real language model on real problems, end to end: SmolLM2-135M-Instruct and GSM8K, two steps on the CPU.

With the engine of the environment: torch in .venv, vLLM in .venv-vllm.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from harness.models.language_model import load_model
from tests.fetch_model import NAME

pytestmark = pytest.mark.slow

ENGINE = "vllm" if importlib.util.find_spec("vllm") else "torch"


def _folder(variable: str, file: str) -> Path:
    folder = os.environ.get(variable)
    if not folder or not (Path(folder) / file).is_file():
        pytest.skip(f"needs {file} in ${variable}")
    return Path(folder)


@pytest.mark.long
def test_std_norm_runs_on_gsm8k_and_moves_the_weights(tmp_path: Path) -> None:
    _folder("BENCH_DATA", "gsm8k_train.jsonl")
    model = _folder("BENCH_MODELS", NAME) / NAME
    settings = {
        "model.source": f"gguf:{model.resolve()}",
        "train.steps": 2,
        "train.learning_rate": 1e-5,
        "train.reference_rows": 2,
        "rollout.engine": ENGINE,
        "rollout.prompts_per_step": 4,
        "rollout.samples_per_prompt": 4,
        # Short enough for a CPU, and for some completions to end without any number: their rewards then differ.
        "rollout.max_completion_tokens": 32,
        "eval.problems": 16,
        "eval.samples": 1,
        "eval.k": "[1]",
        "eval.max_completion_tokens": 32,
    }
    command = [sys.executable, "-c", "from harness.cli import main; main()", "run", "sweeps/std_norm.yaml"]
    command += ["--profile", "smollm2-gsm8k", "--arms", "group_std,no_std", "--seeds", "1", "--home", str(tmp_path)]
    command += ["--workers", "1"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    small_cache = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    finished = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=small_cache, capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stderr
    assert "8 words" in finished.stderr
    sweep = tmp_path / "std_norm"
    assert (sweep / "report" / "index.html").is_file()
    report = json.loads((sweep / "report" / "report.json").read_text())
    assert [arm["arm"] for arm in report["arms"]] == ["group_std", "no_std"]

    cells = sorted((sweep / "cells").iterdir())
    assert len(cells) == 2
    before = load_model(f"gguf:{model.resolve()}").model.state_dict()
    for cell in cells:
        after = load_file(cell / "checkpoints" / "step-000002" / "weights.safetensors")
        assert any((before[name] != after[name]).any() for name in after), f"no weight of {cell.name} moved"
        steps = [json.loads(line) for line in (cell / "steps.jsonl").read_text().splitlines()]
        assert len(steps) == 2
        for step in steps:
            # One float32 model on both sides, so that what differs is the order of sums alone.
            assert step["mismatch/ratio_mean"] == pytest.approx(1, abs=1e-4)
            assert step["mismatch/ratio_max"] == pytest.approx(1, abs=1e-3)
