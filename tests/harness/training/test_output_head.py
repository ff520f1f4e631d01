from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from harness.errors import RefusedError
from harness.training.token_scores import output_head
from tests.harness.training.causal_models import KNOBS, causal_model

TOKENS = torch.tensor([[3, 8, 2, 30, 8]])


@pytest.mark.parametrize("architecture", KNOBS)
def test_logits_are_the_models_own(architecture: str) -> None:
    model = causal_model(architecture)
    with torch.no_grad():
        expected = model(TOKENS).logits
        hidden = model.get_decoder()(TOKENS).last_hidden_state
        torch.testing.assert_close(output_head(model).logits(hidden), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output_head(model).logits(hidden, 0.7), expected / 0.7, atol=1e-5, rtol=1e-5)
    assert float(expected.std()) > 0.1


def test_logits_are_float32_whatever_the_models_dtype() -> None:
    model = causal_model("Llama", torch.bfloat16)
    with torch.no_grad():
        logits = output_head(model).logits(model.get_decoder()(TOKENS).last_hidden_state)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, model(TOKENS).logits.float(), atol=0, rtol=0)


def test_a_head_shares_the_models_weights() -> None:
    model = causal_model("Phi")
    assert output_head(model).weight is model.lm_head.weight
    assert output_head(model).bias is model.lm_head.bias


def test_probing_leaves_the_model_as_it_was() -> None:
    model = causal_model("Llama")
    output_head(model)
    assert not model.get_decoder()._forward_hooks
    assert all(weight.grad is None for weight in model.parameters())


def test_a_model_is_probed_once() -> None:
    calls = []
    model = causal_model("Llama")
    model.register_forward_hook(lambda *call: calls.append(call))
    for _ in range(3):
        output_head(model)
    assert len(calls) == 1


def test_an_unknown_treatment_of_the_logits_is_refused_with_its_config_field() -> None:
    assert output_head(causal_model("HyperCLOVAX", logits_scaling=1.0)).multiplier == 1.0
    model = causal_model("HyperCLOVAX", logits_scaling=5.0)  # multiplies by what Granite divides by
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"HyperCLOVAXForCausalLM.*logits_scaling=5\.0"):
            output_head(model)
    assert not model.get_decoder()._forward_hooks


def test_a_treatment_that_no_config_tells_is_refused() -> None:
    def doubled(module: PreTrainedModel, args: tuple[Any, ...], output: Any) -> Any:
        output.logits = output.logits * 1.05
        return output

    model = causal_model("Llama")
    model.register_forward_hook(doubled)
    with pytest.raises(RefusedError, match="LlamaForCausalLM: its logits are not"):
        output_head(model)


def test_hidden_states_that_the_model_changes_before_its_head_are_refused() -> None:
    model = causal_model("Llama")
    model.lm_head.register_forward_pre_hook(lambda module, args: (args[0] * 1.05,))
    with pytest.raises(RefusedError, match="LlamaForCausalLM: its logits are not"):
        output_head(model)


def test_an_adapted_head_is_refused() -> None:
    class Adapted(torch.nn.Linear):
        pass

    model = causal_model("Llama")
    model.lm_head = Adapted(16, 37, bias=False)
    with pytest.raises(RefusedError, match="output head is Adapted"):
        output_head(model)


def test_a_diverged_model_is_not_refused() -> None:
    model = copy.deepcopy(causal_model("Llama"))
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    assert output_head(model).weight.isnan().all()
