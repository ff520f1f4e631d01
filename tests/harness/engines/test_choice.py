from __future__ import annotations

import gc
import importlib.util
import weakref
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from harness.config.model import Lora
from harness.config.rollout import RolloutSpec
from harness.engines.base import SamplingParams, make_engine
from harness.engines.torch.engine import TorchEngine
from harness.engines.vllm import engine as vllm_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.models.lora import adapted_layers, add_adapters, merged_copy, reset_adapters
from harness.models.start import StartingPoint
from harness.models.tiny import tiny_tokenizer
from harness.run.worker import run_job
from harness.training.reference import frozen_copy
from harness.training.sequences import Sequences, score_completions
from tests.harness.run import bench
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import job_of
from tests.harness.training import rollouts


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in .venv, also where it is installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name))
    monkeypatch.setattr(vllm_engine, "_resident", None)


def test_torch_needs_nothing_else(language_model: LanguageModel, no_vllm: None) -> None:
    engine = make_engine(RolloutSpec(max_completion_tokens=8), language_model)
    assert isinstance(engine, TorchEngine)


PROMPTS = [[4, 13, 5, 14], [6, 14]]
KEYS = torch.arange(6).view(2, 3)
PARAMS = SamplingParams(max_completion_tokens=8)
ROLLOUT: RolloutSpec = small_spec().rollout


@pytest.mark.slow
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
        state, reason = run_job(job_of("load", tmp_path, spec, tmp_path), tmp_path, StartingPoint(), lambda event: None)
        assert state == "refused"
        assert reason is not None and "make .venv-vllm" in reason

    @pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
    def test_ends_the_run_before_any_cell(self, tmp_path: Path) -> None:
        sweep = bench.write_sweep(tmp_path, seeds=1)
        code, stderr = bench.run_here(sweep, tmp_path / "runs", "--set", "rollout.engine=vllm")
        assert code == 2
        assert "make .venv-vllm" in stderr
        cells = bench.cells(tmp_path / "runs").values()
        assert not any((cell.path / "steps.jsonl").exists() for cell in cells)
        assert not list((tmp_path / "runs").rglob("weights.safetensors"))


def adapted(base: PreTrainedModel | None = None) -> PreTrainedModel:
    made = add_adapters(base or rollouts.model(), Lora(rank=4, alpha=8.0))
    reset_adapters(made, seed=0)
    return made


def learn(model: PreTrainedModel, seed: int = 0) -> None:
    """Write to every adapter, as an optimiser does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapted_layers(model):
            layer.A.add_(0.05 * torch.randn(layer.A.shape, generator=generator))
            layer.B.add_(0.05 * torch.randn(layer.B.shape, generator=generator))


class TestAModelWithAdapters:
    def make(self, model: PreTrainedModel) -> LanguageModel:
        return LanguageModel(model, tiny_tokenizer())

    def test_of_the_start_draws_what_the_base_does(self) -> None:
        # torch chooses kernels, which round differently, also by whether a weight is to be trained.
        base = rollouts.model().requires_grad_(False)
        expected = make_engine(ROLLOUT, self.make(base)).generate(PROMPTS, KEYS, PARAMS)
        got = make_engine(ROLLOUT, self.make(adapted(base))).generate(PROMPTS, KEYS, PARAMS)
        assert torch.equal(got.tokens, expected.tokens)
        assert torch.equal(got.logps, expected.logps)

    @pytest.mark.slow
    def test_draws_from_the_adapters_as_they_are(self) -> None:
        """Its log-probs are the trainer's, at every set of weights."""
        model = adapted()
        engine = make_engine(ROLLOUT, self.make(model))
        seen = []
        for step in range(3):
            learn(model, step)
            drawn = engine.generate(PROMPTS, KEYS, PARAMS)
            sequences = Sequences([p for p in PROMPTS for _ in range(3)], drawn.tokens, drawn.lengths)
            logps, _ = score_completions(model, sequences, torch.arange(6), 1.0, 0)
            torch.testing.assert_close(drawn.logps, logps.detach(), rtol=0, atol=1e-4)
            assert drawn.cost.sync_s > 0
            seen.append(drawn.logps.sum())
        assert len({float(total) for total in seen}) == 3

    def test_engines_over_one_model_share_the_copy(self) -> None:
        model = adapted()
        assert merged_copy(model) is merged_copy(model)
        assert merged_copy(model) is not merged_copy(adapted())

    def test_a_frozen_copy_has_a_merged_copy_of_its_own(self) -> None:
        model = adapted()
        learn(model)
        start = frozen_copy(model)
        engine = make_engine(ROLLOUT, self.make(model), start)
        expected = engine.generate(PROMPTS, KEYS, PARAMS)
        learn(model, seed=1)
        again = engine.generate(PROMPTS, KEYS, PARAMS)
        assert torch.equal(again.logps, expected.logps)
        start.load_state_dict(model.state_dict())
        assert not torch.equal(engine.generate(PROMPTS, KEYS, PARAMS).logps, expected.logps)

    @pytest.mark.slow
    def test_the_copy_goes_when_its_model_does(self) -> None:
        model = adapted()
        gone = weakref.ref(merged_copy(model).model)
        del model
        gc.collect()
        assert gone() is None
