"""Layers in blocks give what transformers' own layers give, and are left alone where they would not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.models import blocks
from harness.models.blocks import blocked_layers
from harness.training import prefix_attention
from harness.training.sequences import Sequences, score_completions
from tests.harness.training import rollouts
from tests.harness.training.causal_models import causal_model

BLOCKED: dict[str, tuple[str, dict[str, Any]]] = {
    "one key head for two": ("Llama", {}),
    "as many key heads": ("Llama", {"num_key_value_heads": 2}),
    "biases": ("Qwen2", {}),
    "a window": ("Mistral", {"sliding_window": 5}),
    "frozen norms": ("Llama", {}),
}
ROWS = torch.tensor([9, 2, 5, 8, 1, 0, 15, 13])


def scores_and_gradients(model: PreTrainedModel, made: Sequences) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    logps, _ = score_completions(model, made, ROWS, 1.0, rollouts.PAD)
    (logps * torch.linspace(-1, 2, logps.numel()).view_as(logps)).sum().backward()  # type: ignore[no-untyped-call]
    return logps.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", BLOCKED)
def test_log_probs_and_gradients_are_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture, knobs = BLOCKED[name]
    monkeypatch.setattr(blocks, "BLOCK_TOKENS", 7)  # several blocks, the last of them shorter
    model, made = causal_model(architecture, **knobs), rollouts.sequences()
    if name == "frozen norms":
        for layer in model.get_decoder().layers:
            layer.input_layernorm.weight.requires_grad_(False)
    logps, gradients = scores_and_gradients(model, made)
    monkeypatch.setattr(prefix_attention, "blocked_layers", lambda decoder: None)
    expected_logps, expected = scores_and_gradients(model, made)
    torch.testing.assert_close(logps, expected_logps, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == expected.keys()
    for weight, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected[weight], rtol=2e-3, atol=2e-4 * float(expected[weight].abs().max())
        )


def hooked(model: PreTrainedModel) -> None:
    model.get_decoder().layers[1].mlp.register_forward_hook(lambda *call: None)


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("Llama", lambda model: model.bfloat16()),
        ("Llama", hooked),
        ("Qwen3", None),  # its queries have a norm of their own
        ("Gemma2", None),
        ("GPT2", None),
    ],
)
def test_other_places_are_left_to_transformers(
    architecture: str, change: Callable[[PreTrainedModel], object] | None
) -> None:
    model = causal_model(architecture)
    if change is not None:
        change(model)
    assert blocked_layers(model.get_decoder()) is None


def test_what_only_the_numbers_show_is_found_out() -> None:
    """Granite has Llama's parts, but scales what a layer adds."""
    for factor, same in [(1.0, True), (0.3, False)]:
        model = causal_model("Granite", residual_multiplier=factor)
        decoder = model.get_decoder()
        assert blocked_layers(decoder) is not None
        assert prefix_attention.shares_prompts(decoder)
        assert (prefix_attention._ways[decoder] is prefix_attention._in_blocks) == same
