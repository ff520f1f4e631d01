"""What is special about the vLLM engine, with the real vLLM: one a process, syncs, and what it does to the process."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from harness.engines import parity
from harness.engines.base import Completions, EngineMismatchError, SamplingParams
from harness.engines.vllm import engine as vllm_engine
from harness.engines.vllm.engine import VllmEngine, resident_engine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, weight_version
from harness.random_keys import random_key
from harness.shelves.engine_contract import PROBLEMS, keys, rows_of

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

PARAMS = SamplingParams(40)
MEMORY_FRAC = 0.3
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 600,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 9,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama, untied": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen2, tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3, untied": Qwen3Config(**SIZES, tie_word_embeddings=False),
    "gemma3, tied, with a window": Gemma3TextConfig(
        **(SIZES | {"initializer_range": 0.05}), sliding_window=16, query_pre_attn_scalar=32
    ),
}


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(0.1)
    return model.eval()


def engine_of(language_model: LanguageModel, model: PreTrainedModel | None = None) -> VllmEngine:
    return VllmEngine(
        model or language_model.model,
        language_model.pad_token_id,
        language_model.eos_token_ids,
        language_model.decode,
        MEMORY_FRAC,
    )


def draw(engine: VllmEngine, language_model: LanguageModel, params: SamplingParams = PARAMS) -> Completions:
    return engine.generate([language_model.encode(problem) for problem in PROBLEMS], keys(), params)


def logps_of(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> Tensor:
    with torch.inference_mode():
        logps = model(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
    drawn: Tensor = logps[len(prompt) - 1 : -1].gather(1, torch.tensor(completion)[:, None])[:, 0]
    return drawn


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[PreTrainedModel]:
    """Whose weights have been written into vLLM."""
    written: list[PreTrainedModel] = []
    write = vllm_engine._Resident._write

    def noted(resident: vllm_engine._Resident, model: PreTrainedModel) -> None:
        written.append(model)
        write(resident, model)

    monkeypatch.setattr(vllm_engine._Resident, "_write", noted)
    return written


class TestSync:
    def test_comes_before_the_first_tokens_and_after_each_change(
        self, language_model: LanguageModel, syncs: list[PreTrainedModel]
    ) -> None:
        own = copy.deepcopy(language_model.model)
        engine = engine_of(language_model, own)
        assert syncs == []
        first, again = draw(engine, language_model), draw(engine, language_model)
        assert syncs == [own]
        assert first.cost.sync_s > 10 * again.cost.sync_s
        with torch.no_grad():
            own.get_input_embeddings().weight.mul_(0.5)
        changed = draw(engine, language_model)
        assert syncs == [own, own]
        assert rows_of(changed) != rows_of(first)

    def test_goes_to_whoever_generates(self, language_model: LanguageModel, syncs: list[PreTrainedModel]) -> None:
        """The policy and a frozen copy, say, that lend the same vLLM."""
        models = [copy.deepcopy(language_model.model) for _ in range(2)]
        for model, factor in zip(models, (1.0, 0.5), strict=True):
            with torch.no_grad():
                model.get_input_embeddings().weight.mul_(factor)
        assert weight_version(models[0]) == weight_version(models[1])
        engines = [engine_of(language_model, model) for model in models]
        alone = [rows_of(draw(engine, language_model)) for engine in engines]
        assert alone[0] != alone[1]
        syncs.clear()
        assert [rows_of(draw(engine, language_model)) for engine in engines * 2] == alone * 2
        assert syncs == models * 2

    def test_forgets_the_keys_and_values_of_the_old_weights(self, language_model: LanguageModel) -> None:
        """vLLM keeps those of whole blocks of 128 tokens of a prompt."""
        model = random_model(CONFIGS["llama, untied"])
        engine = VllmEngine(model, 0, [], language_model.decode, MEMORY_FRAC)
        prompt = [token % 50 for token in range(400)]
        engine.generate([prompt], keys(1, 1), SamplingParams(4))
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(0.5)
        drawn = engine.generate([prompt], keys(1, 1), SamplingParams(4))
        torch.testing.assert_close(drawn.logps[0], logps_of(model, prompt, drawn.tokens[0].tolist()), atol=1e-4, rtol=0)

    def test_does_not_remember_earlier_calls(
        self, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bits would depend on them: a prompt whose keys and values are there already is computed in another batch."""
        engine = VllmEngine(random_model(CONFIGS["llama, untied"]), 0, [], language_model.decode, MEMORY_FRAC)
        inside = resident_engine(engine._model, MEMORY_FRAC)._engine
        kept: list[int] = []
        step = inside.step

        def noted() -> Any:
            answers = step()
            kept.extend(answer.num_cached_tokens for answer in answers)
            return answers

        monkeypatch.setattr(inside, "step", noted)
        for _ in range(2):
            engine.generate([[token % 50 for token in range(400)]], keys(1, 1), SamplingParams(4))
        assert len(kept) >= 2 and not any(kept)

    def test_that_does_not_arrive_is_a_mismatch(
        self, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = copy.deepcopy(language_model.model)
        engine = engine_of(language_model, model)
        draw(engine, language_model)
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(1.02)
        with monkeypatch.context() as patch:
            patch.setattr(vllm_engine._Resident, "_write", lambda *_: None)
            for _ in range(2):
                with pytest.raises(EngineMismatchError, match="vLLM does not use the weights"):
                    draw(engine, language_model)
        draw(engine, language_model)

    def test_that_failed_leaves_nobodys_weights(
        self, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, other = engine_of(language_model), copy.deepcopy(language_model.model)
        before = rows_of(draw(own, language_model))
        write = vllm_engine._Resident._write

        def spoil(resident: vllm_engine._Resident, model: PreTrainedModel) -> None:
            write(resident, model)
            with torch.no_grad():
                model.get_input_embeddings().weight.mul_(0.5)

        with monkeypatch.context() as patch:
            with torch.no_grad():
                other.get_input_embeddings().weight.mul_(0.5)
            patch.setattr(vllm_engine._Resident, "_write", spoil)
            with pytest.raises(EngineMismatchError):
                draw(engine_of(language_model, other), language_model)
        assert rows_of(draw(own, language_model)) == before


@pytest.mark.parametrize("name", CONFIGS)
def test_architectures(name: str, language_model: LanguageModel) -> None:
    """Each starts a vLLM of its own. Prompts together exceed what vLLM computes in one pass (4096 tokens)."""
    model = random_model(CONFIGS[name])
    engine = VllmEngine(model, 0, [7], language_model.decode, MEMORY_FRAC)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(50, (length,), generator=generator).tolist() for length in (1, 40, *[560] * 14)]
    drawn = engine.generate(prompts, keys(len(prompts), 2), SamplingParams(40))
    assert len(set(drawn.lengths.tolist())) > 1
    for row, completion in enumerate(rows_of(drawn)):
        assert len(completion) == 40 or completion[-1] == 7, "what ends a row is what the engine was given"
        expected = logps_of(model, prompts[row // 2], completion)
        torch.testing.assert_close(drawn.logps[row, : len(completion)], expected, atol=1e-4, rtol=0)
    assert rows_of(engine.generate(prompts, keys(len(prompts), 2), SamplingParams(40))) == rows_of(drawn)


def test_one_vllm_a_process(language_model: LanguageModel) -> None:
    model, wider = language_model.model, random_model(LlamaConfig(**(SIZES | {"intermediate_size": 96})))
    before = rows_of(draw(engine_of(language_model), language_model))
    resident = resident_engine(model, MEMORY_FRAC)
    assert resident_engine(copy.deepcopy(model), MEMORY_FRAC) is resident
    other = VllmEngine(wider, 0, [], language_model.decode, MEMORY_FRAC)
    assert vllm_engine._resident is resident_engine(wider, MEMORY_FRAC) is not resident
    assert other.generate([[1, 2]], keys(1, 1), SamplingParams(3)).lengths.item() == 3
    assert rows_of(draw(engine_of(language_model), language_model)) == before


def test_a_row_is_not_computed_beyond_its_end(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    prompt = language_model.encode(PROBLEMS[0])
    endless = VllmEngine(language_model.model, 0, [], language_model.decode, MEMORY_FRAC)
    inside = resident_engine(language_model.model, MEMORY_FRAC)._engine
    step = inside.step

    def counted() -> Any:
        steps.append(1)
        return step()

    monkeypatch.setattr(inside, "step", counted)
    free = endless.generate([prompt], keys(1, 1), PARAMS)
    assert len(steps) >= 40
    steps.clear()
    first = language_model.decode(rows_of(free)[0][:1])
    stopped = endless.generate([prompt], keys(1, 1), replace(PARAMS, stop=(first,)))
    assert (stopped.lengths.item(), stopped.truncated.item()) == (1, False)
    assert len(steps) <= 2
    steps.clear()
    ended = engine_of(language_model).generate([prompt], keys(1, 1), PARAMS)
    assert ended.lengths.item() <= len(steps) <= ended.lengths.item() + 1 < 40


class TestProcess:
    @pytest.fixture
    def state(self) -> Iterator[Any]:
        """What a trainer in this process relies on, as a list that can be compared."""
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        yield lambda: [
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # type: ignore[index]
            torch.get_num_threads(),
            os.sched_getaffinity(0),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
        ]
        torch.set_num_threads(threads)

    def test_is_left_as_it_was(self, language_model: LanguageModel, state: Any) -> None:
        before, set_num_threads = state(), torch.set_num_threads
        model = random_model(LlamaConfig(**(SIZES | {"intermediate_size": 80})))
        engine = VllmEngine(model, 0, [], language_model.decode, MEMORY_FRAC)
        assert state() == before
        engine.generate([[1, 2, 3]], keys(1, 4), SamplingParams(5))
        assert state() == before
        assert torch.set_num_threads is set_num_threads
        torch.set_num_threads(1)
        assert torch.get_num_threads() == 1

    def test_goes_on_after_a_failure_on_the_way(self, language_model: LanguageModel) -> None:
        def fail(tokens: list[int]) -> str:
            raise ZeroDivisionError

        before = rows_of(draw(engine_of(language_model), language_model))
        failing = VllmEngine(language_model.model, 0, language_model.eos_token_ids, fail, MEMORY_FRAC)
        with pytest.raises(ZeroDivisionError):
            draw(failing, language_model, replace(PARAMS, stop=("#",)))
        assert rows_of(draw(engine_of(language_model), language_model)) == before


class TestSeeds:
    def test_every_key_is_a_seed(self, language_model: LanguageModel) -> None:
        """vLLM takes -1 for no seed."""
        engine, prompt = engine_of(language_model), language_model.encode(PROBLEMS[0])
        extremes = torch.tensor([[-1, -(2**63), 2**63 - 1, 0, -1]])
        one, other = (rows_of(engine.generate([prompt], extremes, PARAMS)) for _ in range(2))
        assert one == other
        assert one[0] == one[4]

    def test_noise_stays_with_its_sample_when_the_cache_is_short(
        self, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """vLLM then takes rows out that are under way, and computes them again later."""
        model, params = random_model(CONFIGS["llama, untied"]), SamplingParams(300)
        plenty = VllmEngine(model, 0, [], language_model.decode, MEMORY_FRAC)
        many = torch.tensor([[random_key(0, "rollout", example=row) for row in range(12)]])
        expected = rows_of(plenty.generate([[1, 2, 3]], many, params))
        block_bytes = 2 * 2 * 128 * 2 * 32 * 4
        monkeypatch.setattr(vllm_engine, "CPU_CACHE_BYTES", 16 * block_bytes)
        vllm_engine._drop(resident_engine(model, MEMORY_FRAC))
        short = VllmEngine(model, 0, [], language_model.decode, MEMORY_FRAC)
        assert rows_of(short.generate([[1, 2, 3]], many, params)) == expected
        vllm_engine._drop(resident_engine(model, MEMORY_FRAC))


class TestRefusals:
    def test_a_head_that_vllm_has_no_kernel_for(self, language_model: LanguageModel) -> None:
        model = random_model(LlamaConfig(**(SIZES | {"head_dim": 24})))
        with pytest.raises(RefusedError, match=r"cannot run this LlamaForCausalLM on cpu: .*head_dim=24.*engine=torch"):
            VllmEngine(model, 0, [], language_model.decode, MEMORY_FRAC)
        assert vllm_engine._resident is None
        draw(engine_of(language_model), language_model)

    def test_a_context_larger_than_the_cache(self, language_model: LanguageModel) -> None:
        model = random_model(LlamaConfig(**(SIZES | {"max_position_embeddings": 400_000})))
        with pytest.raises(RefusedError, match="KV cache"):
            VllmEngine(model, 0, [], language_model.decode, MEMORY_FRAC)

    @pytest.mark.parametrize("temperature", [1e-6, 0.009, 2.01])
    def test_a_temperature_that_vllm_does_not_sample_at(
        self, language_model: LanguageModel, temperature: float
    ) -> None:
        with pytest.raises(RefusedError, match=rf"{temperature}.*from 0\.01 to 2"):
            draw(engine_of(language_model), language_model, SamplingParams(4, temperature))


def test_the_probe_is_within_its_bound_by_far(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(vllm_engine, "require_parity", lambda *given: seen.append(parity.require_parity(*given)))
    draw(engine_of(language_model, copy.deepcopy(language_model.model)), language_model)
    assert 0 < seen[0] < 1e-5
