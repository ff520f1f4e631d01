from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from harness.errors import RefusedError
from harness.models.start import set_activation_checkpointing
from harness.training.sequences import score_completions
from tests.harness.training import rollouts
from tests.harness.training.causal_models import causal_model

ARCHITECTURES = ["Llama", "Qwen2", "Qwen3", "Gemma2", "GPT2"]
ATTENTION = {"GPT2": "attn"}


def count_passes(model: PreTrainedModel, name: str = "self_attn") -> list[int]:
    """One entry for each pass through a layer's attention, from now on."""
    passes: list[int] = []
    for layer, module in enumerate(module for at, module in model.named_modules() if at.endswith(f".{name}")):
        hook: Callable[..., None] = lambda *call, layer=layer: passes.append(layer)  # noqa: E731
        module.register_forward_hook(hook)
    assert name in str(model)
    return passes


def backward(model: PreTrainedModel) -> torch.Tensor:
    """The gradient of the mean log-prob of made-up completions; the model's own is left at None."""
    made = rollouts.sequences()
    logps, _ = score_completions(model, made, torch.arange(len(made.prompts)), 1.0, rollouts.PAD)
    logps.mean().backward()  # type: ignore[no-untyped-call]
    found = rollouts.gradient(model)
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_is_the_same_and_layers_run_twice(architecture: str) -> None:
    model = causal_model(architecture)
    expected = backward(model)
    passes = count_passes(model, ATTENTION.get(architecture, "self_attn"))
    backward(model)
    assert sorted(passes) == [0, 1]
    passes.clear()
    set_activation_checkpointing(model, on=True)
    got = backward(model)
    assert sorted(passes) == [0, 0, 1, 1]
    assert torch.equal(got, expected)
    assert got.abs().sum() > 0


def test_it_can_be_switched_off_and_on_again() -> None:
    model = rollouts.model()
    backward(model)  # the first pass of a model is compared with its own way
    for _ in range(2):
        set_activation_checkpointing(model, on=True)
    passes = count_passes(model)
    backward(model)
    assert len(passes) == 4
    set_activation_checkpointing(model, on=False)
    passes.clear()
    backward(model)
    assert len(passes) == 2
    assert not model.training and not any(module.training for module in model.modules())


def test_a_copy_keeps_it_and_its_own_weights() -> None:
    model = rollouts.model()
    set_activation_checkpointing(model, on=True)
    twin = copy.deepcopy(model)
    expected = backward(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert torch.equal(backward(twin), expected)
    passes = count_passes(twin)
    backward(twin)
    assert len(passes) == 4


def test_sampling_is_left_alone() -> None:
    """`generate` and the engines use the very same layers, with a cache that a second pass would write to twice."""
    model = rollouts.model()
    tokens = torch.tensor([[4, 13, 5, 14]])
    expected = model.generate(tokens, max_new_tokens=8, do_sample=False)
    set_activation_checkpointing(model, on=True)
    passes = count_passes(model)
    assert torch.equal(model.generate(tokens, max_new_tokens=8, do_sample=False), expected)
    assert len(passes) == 2 * (expected.shape[1] - 4)


def test_an_architecture_that_does_not_support_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(torch.nn.Module):
        pass

    monkeypatch.setattr("transformers.modeling_layers.GradientCheckpointingLayer", Other)
    with pytest.raises(RefusedError, match="transformers does not do it for LlamaForCausalLM"):
        set_activation_checkpointing(rollouts.model(), on=True)
    set_activation_checkpointing(rollouts.model(), on=False)
