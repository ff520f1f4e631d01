from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.config.rollout import RolloutSpec
from harness.engines import vllm as vllm_engine
from harness.engines.choice import make_engine
from harness.engines.torch.engine import TorchEngine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.models.start import StartingPoint
from harness.run.worker import do
from tests.harness.run import bench
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import job_of


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in .venv, also where it is installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name))
    monkeypatch.setattr(vllm_engine, "_resident", None)


def test_torch_needs_nothing_else(language_model: LanguageModel, no_vllm: None) -> None:
    engine = make_engine(RolloutSpec(max_completion_tokens=8), language_model)
    assert isinstance(engine, TorchEngine)


class TestVllmThatIsNotInstalled:
    def test_is_refused_with_the_command_that_builds_it_on_a_cpu(
        self, language_model: LanguageModel, no_vllm: None
    ) -> None:
        with pytest.raises(RefusedError, match=r"make \.venv-vllm, then \.venv-vllm/bin/bench.*engine=torch"):
            make_engine(RolloutSpec(engine="vllm", max_completion_tokens=8), language_model)

    def test_is_refused_with_the_command_that_installs_it_on_cuda(self, no_vllm: None) -> None:
        with pytest.raises(RefusedError, match=r"pip install -e '\.\[vllm\]'.*engine=torch"):
            vllm_engine._import_vllm(on_cpu=False)

    def test_is_found_when_the_model_is_loaded(self, tmp_path: Path, no_vllm: None) -> None:
        spec = small_spec({"rollout.engine": "vllm"})
        state, reason = do(job_of("load", tmp_path, spec, tmp_path), tmp_path, StartingPoint(), lambda event: None)
        assert state == "refused"
        assert reason is not None and "make .venv-vllm" in reason

    @pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
    def test_ends_the_run_before_any_cell(self, tmp_path: Path) -> None:
        sweep = bench.write_sweep(tmp_path, seeds=1)
        code, stderr = bench.run(sweep, tmp_path / "runs", "--set", "rollout.engine=vllm")
        assert code == 2
        assert "make .venv-vllm" in stderr
        cells = bench.cells(tmp_path / "runs").values()
        assert not any((cell.path / "steps.jsonl").exists() for cell in cells)
        assert not list((tmp_path / "runs").rglob("weights.safetensors"))


def test_vllm_on_another_gpu_than_the_first_is_refused(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the first one all the same."""
    monkeypatch.setattr("harness.engines.choice.has_adapters", lambda model: False)
    elsewhere: Any = SimpleNamespace(device=torch.device("cuda:1"))
    with pytest.raises(RefusedError, match=r"CUDA_VISIBLE_DEVICES=1.*rollout\.engine=torch"):
        make_engine(RolloutSpec(engine="auto", max_completion_tokens=8), language_model, elsewhere)
