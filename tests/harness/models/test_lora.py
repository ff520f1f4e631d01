from __future__ import annotations

import sys

import pytest
import torch
from transformers import PreTrainedModel

from harness.config.model import Lora
from harness.errors import RefusedError
from harness.models.lora import (
    MergedWeights,
    adapted_layers,
    add_adapters,
    has_adapters,
    remove_adapters,
    reset_adapters,
)
from harness.training.reference import frozen_copy
from tests.harness.training import rollouts
from tests.harness.training.causal_models import causal_model
from tests.refusals import refuses

TOKENS = torch.tensor([[4, 13, 5, 14]])


def adapted(model: PreTrainedModel, seed: int = 0, **settings: object) -> PreTrainedModel:
    made = add_adapters(model, Lora.model_validate({"rank": 3, "alpha": 6.0} | settings))
    reset_adapters(made, seed)
    return made


def learned(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    return {f"{layer.name}.A": layer.A for layer in adapted_layers(model)} | {
        f"{layer.name}.B": layer.B for layer in adapted_layers(model)
    }


class TestTheStart:
    @pytest.mark.parametrize(
        ("architecture", "dtype"),
        [
            ("Llama", torch.float32),
            ("Qwen2", torch.bfloat16),
            ("Qwen3", torch.float32),
            ("Gemma2", torch.bfloat16),
        ],
    )
    def test_is_the_base_bit_for_bit(self, architecture: str, dtype: torch.dtype) -> None:
        base = causal_model(architecture, dtype)
        made = adapted(base)
        assert torch.equal(made(TOKENS).logits, base(TOKENS).logits)
        assert {weight.dtype for weight in made.parameters()} == {dtype}
        assert len(adapted_layers(made)) == 14

    def test_is_fixed_by_the_seed_and_leaves_the_global_generator_alone(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        one, same, other = (adapted(rollouts.model(), seed) for seed in (0, 0, 1))
        assert torch.equal(torch.rand(3), expected)
        assert all(torch.equal(weight, learned(same)[name]) for name, weight in learned(one).items())
        assert not any(
            torch.equal(weight, learned(other)[name]) for name, weight in learned(one).items() if name[-1] == "A"
        )

    def test_of_a_layer_does_not_depend_on_what_else_is_adapted(self) -> None:
        one, other = adapted(rollouts.model()), adapted(rollouts.model(), target_modules=["v_proj"])
        assert len(adapted_layers(other)) == 2
        assert all(torch.equal(weight, learned(one)[name]) for name, weight in learned(other).items())

    def test_is_spread_as_the_reference_implementation_spreads_it(self) -> None:
        """Uniform in +-1 / sqrt(inputs); layers differ."""
        layers = adapted_layers(adapted(rollouts.model(), rank=64))
        for layer in layers:
            bound = layer.A.shape[1] ** -0.5
            assert layer.A.shape == (64, layer.base.in_features) and layer.B.shape == (layer.base.out_features, 64)
            assert 0.99 * bound < layer.A.abs().max() <= bound
            assert float(layer.A.detach().mean()) == pytest.approx(0, abs=0.05 * bound)
            assert float(layer.A.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.03)
            assert not layer.B.any()
        assert not torch.equal(layers[0].A, layers[1].A)

    def test_comes_back_after_training(self) -> None:
        made = adapted(rollouts.model())
        before = {name: weight.clone() for name, weight in learned(made).items()}
        for weight in learned(made).values():
            weight.data.add_(1.0)
            weight.grad = torch.ones_like(weight)
        reset_adapters(made, 0)
        assert all(torch.equal(weight, before[name]) for name, weight in learned(made).items())
        assert all(weight.grad is None for weight in learned(made).values())


def test_only_adapters_take_gradients_and_weights_are_shared() -> None:
    base = rollouts.model()
    made = adapted(base)
    trained = {name for name, weight in made.named_parameters() if weight.requires_grad}
    assert trained == {name for name in made.state_dict() if "lora_" in name}
    assert len(trained) == 28
    made_of = {id(weight) for weight in made.parameters()}
    assert all(id(weight) in made_of for weight in base.parameters())
    assert not has_adapters(base) and has_adapters(made)
    assert made.get_output_embeddings().weight is base.get_output_embeddings().weight


def test_an_output_head_of_its_own_takes_no_gradient() -> None:
    made = adapted(causal_model("Llama", tie_word_embeddings=False))
    assert not made.get_output_embeddings().weight.requires_grad
    assert any(weight.requires_grad for weight in made.parameters())


def test_the_forward_pass_adds_the_scaled_product() -> None:
    base = rollouts.model()
    made = adapted(base, alpha=1.5)
    layer = adapted_layers(made)[0]
    torch.nn.init.normal_(layer.B)
    hidden = torch.randn(2, layer.base.in_features)
    got = made.get_submodule(layer.name)(hidden)
    assert layer.name == "model.layers.0.self_attn.q_proj"
    expected = hidden @ layer.base.weight.T + 0.5 * (hidden @ layer.A.T) @ layer.B.T
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(hidden @ layer.merged_weight().T, expected)


def test_a_frozen_copy_is_of_its_own() -> None:
    made = adapted(rollouts.model())
    for layer in adapted_layers(made):
        torch.nn.init.normal_(layer.B, std=0.1)
    copied = frozen_copy(made)
    expected = made(TOKENS).logits
    assert torch.equal(copied(TOKENS).logits, expected)
    for layer in adapted_layers(made):
        layer.B.data.zero_()
    assert torch.equal(copied(TOKENS).logits, expected)
    assert not any(weight.requires_grad for weight in copied.parameters())
    copied.load_state_dict(made.state_dict())
    assert torch.equal(copied(TOKENS).logits, made(TOKENS).logits)


def test_without_its_adapters_it_is_the_plain_model() -> None:
    base = rollouts.model()
    made = adapted(base)
    for layer in adapted_layers(made):
        torch.nn.init.normal_(layer.B)
    remove_adapters(made)
    assert not has_adapters(made)
    assert made.state_dict().keys() == base.state_dict().keys()
    assert torch.equal(made(TOKENS).logits, base(TOKENS).logits)


@pytest.mark.parametrize("targets", [["query"], ["q_proj", "query"], ["lm_head"], ["embed_tokens"]])
def test_a_target_that_is_no_linear_layer_of_the_decoder_is_refused(targets: list[str]) -> None:
    named = targets[-1]
    layers = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    with refuses(RefusedError, "models.unknown_lora_targets", targets=named, known=layers):
        adapted(rollouts.model(), target_modules=targets)


def test_without_peft_it_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with refuses(RefusedError, "models.peft_not_installed"):
        adapted(rollouts.model())


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


class TestMergedWeights:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_fifty_merges_do_not_drift(self, dtype: torch.dtype) -> None:
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
    def test_the_copy_computes_what_the_adapted_model_does(self, architecture: str) -> None:
        model = adapted(causal_model(architecture))
        learn(model)
        merged = MergedWeights(model)
        merged.refresh()
        assert not has_adapters(merged.model)
        tokens = torch.tensor([[4, 13, 5, 14]])
        torch.testing.assert_close(merged.model(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)

    def test_merges_only_after_a_write(self) -> None:
        model = adapted(rollouts.model())
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

    def test_what_is_not_adapted_is_shared(self) -> None:
        model = adapted(rollouts.model())
        copied = MergedWeights(model).model
        shared = {
            name for name, weight in copied.named_parameters() if weight is dict(model.named_parameters()).get(name)
        }
        assert shared == {name for name, _ in copied.named_parameters() if "_proj" not in name}
        assert copied.get_output_embeddings().weight is model.get_input_embeddings().weight
