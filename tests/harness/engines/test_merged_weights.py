from __future__ import annotations

import gc
import weakref

import pytest
import torch
from transformers import PreTrainedModel

from harness.config.model import Lora
from harness.config.rollout import RolloutSpec
from harness.engines.base import SamplingParams
from harness.engines.choice import MergedWeights, make_engine, merged_copy
from harness.models.language_model import LanguageModel
from harness.models.lora import adapted_layers, add_adapters, has_adapters, reset_adapters
from harness.models.tiny import tiny_tokenizer
from harness.training.reference import frozen_copy
from harness.training.sequences import Sequences, score_completions
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.causal_models import causal_model

PROMPTS = [[4, 13, 5, 14], [6, 14]]
KEYS = torch.arange(6).view(2, 3)
PARAMS = SamplingParams(max_completion_tokens=8)
ROLLOUT: RolloutSpec = small_spec().rollout


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


def state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fifty_merges_do_not_drift(dtype: torch.dtype) -> None:
    base = rollouts.model().to(dtype)
    before = state(base)
    model = adapted(base)
    merged = MergedWeights(model)
    for step in range(50):
        learn(model, step)
        merged.refresh()
    fresh = MergedWeights(model)
    fresh.refresh()
    assert_equal(state(merged.model), state(fresh.model))
    assert_equal(state(base), before)
    assert merged.model.state_dict().keys() == before.keys()
    moved = [name for name, weight in before.items() if not torch.equal(weight, merged.model.state_dict()[name])]
    assert len(moved) == 14


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3", "Gemma2"])
def test_the_copy_computes_what_the_adapted_model_does(architecture: str) -> None:
    model = adapted(causal_model(architecture))
    learn(model)
    merged = MergedWeights(model)
    merged.refresh()
    assert not has_adapters(merged.model)
    tokens = torch.tensor([[4, 13, 5, 14]])
    torch.testing.assert_close(merged.model(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_merges_only_after_a_write() -> None:
    model = adapted()
    merged = MergedWeights(model)
    merged.refresh()
    layers = adapted_layers(model)
    weight = merged.model.get_submodule(layers[0].name).weight
    written = weight._version
    merged.refresh()
    assert weight._version == written
    learn(model)
    for part in (layers[0].A, layers[0].B, layers[0].base.weight):
        with torch.no_grad():
            part.mul_(2)
        merged.refresh()
        assert weight._version > written
        assert torch.equal(weight, layers[0].merged_weight())
        written = weight._version


def test_what_is_not_adapted_is_shared() -> None:
    model = adapted()
    copied = MergedWeights(model).model
    shared = {name for name, weight in copied.named_parameters() if weight is dict(model.named_parameters()).get(name)}
    assert shared == {name for name, _ in copied.named_parameters() if "_proj" not in name}
    assert copied.get_output_embeddings().weight is model.get_input_embeddings().weight


class TestTheEngine:
    def make(self, model: PreTrainedModel) -> LanguageModel:
        return LanguageModel(model, tiny_tokenizer())

    def test_of_the_start_draws_what_the_base_does(self) -> None:
        # torch chooses kernels, which round differently, also by whether a weight is to be trained.
        base = rollouts.model().requires_grad_(False)
        expected = make_engine(ROLLOUT, self.make(base)).generate(PROMPTS, KEYS, PARAMS)
        got = make_engine(ROLLOUT, self.make(adapted(base))).generate(PROMPTS, KEYS, PARAMS)
        assert torch.equal(got.tokens, expected.tokens)
        assert torch.equal(got.logps, expected.logps)

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

    def test_the_copy_goes_when_its_model_does(self) -> None:
        model = adapted()
        gone = weakref.ref(merged_copy(model).model)
        del model
        gc.collect()
        assert gone() is None
