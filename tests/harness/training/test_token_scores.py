"""Log-probs from chunks of logits, and heads that are the model's own."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from harness.errors import RefusedError
from harness.training.token_scores import OutputHead, output_head, token_kl, token_scores
from tests.harness.training.causal_models import KNOBS, causal_model
from tests.refusals import refuses

WIDTH, VOCABULARY = 5, 11


@st.composite
def settings_of_a_head(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "bias": draw(st.booleans()),
        "multiplier": draw(st.sampled_from([1.0, 0.3])),
        "softcap": draw(st.sampled_from([None, 2.0])),
    }


def problem(
    tokens: int,
    dtype: torch.dtype = torch.float64,
    bias: bool = False,
    multiplier: float = 1.0,
    softcap: float | None = None,
    seed: int = 0,
) -> tuple[Tensor, OutputHead, Tensor]:
    """hidden [tokens, D], head and targets [tokens]; logits far from uniform."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    head = OutputHead(normal(VOCABULARY, WIDTH), normal(VOCABULARY) if bias else None, multiplier, softcap)
    return normal(tokens, WIDTH), head, torch.randint(VOCABULARY, (tokens,), generator=generator)


def distribution(hidden: Tensor, head: OutputHead, temperature: float) -> Tensor:
    """Log-probs [M, V] over the vocabulary, with autograd's gradients."""
    logits = (hidden @ head.weight.T + (0 if head.bias is None else head.bias)) * head.multiplier
    if head.softcap is not None:
        logits = torch.tanh(logits / head.softcap) * head.softcap
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return torch.log_softmax(logits / temperature, 1)


def naive(hidden: Tensor, head: OutputHead, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The definitions of a log-prob and of the entropy."""
    logps = distribution(hidden, head, temperature)
    return logps[range(len(targets)), targets], -(logps.exp() * logps).sum(1)


def gradients(outputs: tuple[Tensor, ...], hidden: Tensor, head: OutputHead) -> list[Tensor]:
    """Gradients of a sum with a different weight for every output."""
    inputs = [hidden, head.weight] + ([] if head.bias is None else [head.bias])
    total = sum((output * torch.linspace(-1, 2, len(output))).sum() for output in outputs)
    assert isinstance(total, Tensor)
    return list(torch.autograd.grad(total, inputs))


class Results(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The shapes of all operations' results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: set[torch.Size] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.shapes |= {leaf.shape for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


@settings(max_examples=60)
@given(
    settings_of_a_head(), st.integers(1, 13), st.integers(1, 15), st.sampled_from([0.3, 1.0, 1.7]), st.integers(0, 99)
)
def test_any_chunk_size_equals_the_definition(
    head_settings: dict[str, Any], tokens: int, chunk_tokens: int, temperature: float, seed: int
) -> None:
    hidden, head, targets = problem(tokens, seed=seed, **head_settings)
    expected = naive(hidden, head, targets, temperature)
    both = token_scores(hidden, head, targets, temperature, chunk_tokens, entropy_grad=True)
    torch.testing.assert_close(both, expected)
    torch.testing.assert_close(gradients(both, hidden, head), gradients(expected, hidden, head))

    logps, entropy = token_scores(hidden, head, targets, temperature, chunk_tokens)
    torch.testing.assert_close((logps, entropy), expected)
    assert not entropy.requires_grad
    expected_logps = naive(hidden, head, targets, temperature)[0]
    torch.testing.assert_close(gradients((logps,), hidden, head), gradients((expected_logps,), hidden, head))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradcheck(softcap: float | None) -> None:
    hidden, head, targets = problem(4, bias=True, multiplier=0.8, softcap=softcap)
    assert head.bias is not None

    def scores(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return token_scores(hidden, OutputHead(weight, bias, 0.8, softcap), targets, 0.7, 3, entropy_grad=True)

    assert torch.autograd.gradcheck(scores, (hidden, head.weight, head.bias))


def test_the_gradient_of_the_entropy_alone() -> None:
    hidden, head, targets = problem(6)
    _, entropy = token_scores(hidden, head, targets, 0.7, 4, entropy_grad=True)
    _, expected = naive(hidden, head, targets, 0.7)
    torch.testing.assert_close(gradients((entropy,), hidden, head), gradients((expected,), hidden, head))


@pytest.mark.parametrize(("hidden_grad", "weight_grad"), [(True, False), (False, True)])
def test_gradients_only_where_they_are_wanted(hidden_grad: bool, weight_grad: bool) -> None:
    hidden, head, targets = problem(6, bias=True)
    logps, _ = token_scores(hidden, head, targets, 1.0, 4)
    expected = gradients((logps,), hidden, head)
    assert head.bias is not None
    hidden.requires_grad_(hidden_grad)
    head.weight.requires_grad_(weight_grad)
    head.bias.requires_grad_(weight_grad)
    logps, _ = token_scores(hidden, head, targets, 1.0, 4)
    with Results() as results:
        torch.autograd.backward(logps, torch.linspace(-1, 2, 6))
    assert (head.weight.shape in results.shapes) == weight_grad
    for tensor, gradient, wanted in zip(
        (hidden, head.weight, head.bias), expected, (hidden_grad, weight_grad, weight_grad), strict=True
    ):
        assert (tensor.grad is not None) == wanted
        if tensor.grad is not None:
            torch.testing.assert_close(tensor.grad, gradient)


def test_low_precision_gives_float32_results_and_gradients_of_its_own_dtype() -> None:
    hidden, head, targets = problem(9, torch.bfloat16)
    scores = token_scores(hidden, head, targets, 0.7, 4, entropy_grad=True)
    assert [score.dtype for score in scores] == [torch.float32] * 2
    expected = naive(hidden, head, targets, 0.7)  # the only rounding is that of the logits
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    for gradient, exact in zip(
        gradients(scores, hidden, head),
        gradients(expected, hidden, head),
        strict=True,
    ):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient, exact, atol=0.05, rtol=0.05)


def test_the_heads_gradient_of_low_precision_is_added_up_in_float32() -> None:
    """A thousand small addends to a large one, chunk by chunk: rounded sums would stay where they are."""
    _, head, _ = problem(1, torch.bfloat16)
    hidden = torch.ones(1000, WIDTH, dtype=torch.bfloat16)
    weight = head.weight.detach().clone().requires_grad_()
    weight.grad_dtype = torch.float32
    logps, _ = token_scores(hidden, OutputHead(weight), torch.zeros(1000, dtype=torch.int64), 1.0, 1)
    torch.autograd.backward(logps.sum())
    alone = weight.detach().clone().requires_grad_()
    alone.grad_dtype = torch.float32
    logps, _ = token_scores(hidden[:1], OutputHead(alone), torch.zeros(1, dtype=torch.int64), 1.0, 1)
    torch.autograd.backward(logps.sum())
    assert weight.grad is not None and alone.grad is not None
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(weight.grad, 1000 * alone.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extremely_unlikely_tokens_stay_finite(dtype: torch.dtype) -> None:
    hidden, head, _ = problem(8, dtype)
    with torch.no_grad():
        hidden.mul_(1e5)
        unlikely = (hidden @ head.weight.T).argmin(1)
    scores = token_scores(hidden, head, unlikely, 0.5, 3, entropy_grad=True)
    assert float(scores[0].detach().max()) < -1e4
    assert all(bool(tensor.isfinite().all()) for tensor in [*scores, *gradients(scores, hidden, head)])


def test_no_tokens() -> None:
    hidden, head, targets = problem(0)
    scores = token_scores(hidden, head, targets, 1.0, 4, entropy_grad=True)
    assert [tuple(score.shape) for score in scores] == [(0,), (0,)]
    assert all(bool((gradient == 0).all()) for gradient in gradients(scores, hidden, head))
    assert token_kl(hidden, head, hidden, head, 1.0, 4).shape == (0,)


def test_repeated_runs_are_identical() -> None:
    hidden, head, targets = problem(50, torch.float32)

    def run() -> list[Tensor]:
        scores = token_scores(hidden, head, targets, 0.7, 8, entropy_grad=True)
        return [*scores, *gradients(scores, hidden, head)]

    assert all(torch.equal(one, other) for one, other in zip(run(), run(), strict=True))


def test_inference_mode() -> None:
    hidden, head, targets = problem(5)
    with torch.inference_mode():
        scores = token_scores(hidden, head, targets, 0.7, 2)
        torch.testing.assert_close(scores, naive(hidden, head, targets, 0.7))


def test_a_weight_changed_between_the_passes_is_an_error() -> None:
    hidden, head, targets = problem(5)
    logps, _ = token_scores(hidden, head, targets, 1.0, 2)
    with torch.no_grad():
        head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(logps.sum())


def test_no_more_logits_than_those_of_a_chunk() -> None:
    hidden, head, targets = problem(200)
    with Results() as results:
        scores = token_scores(hidden, head, targets, 0.7, 100, entropy_grad=True)
        gradients(scores, hidden, head)
        token_kl(hidden, head, hidden, head, 0.7, 100)
    assert max(shape.numel() for shape in results.shapes) == 100 * VOCABULARY > hidden.numel()


@given(st.integers(1, 9), st.integers(1, 11), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 99))
@settings(max_examples=30)
def test_kl_equals_the_definition(tokens: int, chunk_tokens: int, temperature: float, seed: int) -> None:
    hidden, head, _ = problem(tokens, seed=seed)
    reference_hidden, reference_head, _ = problem(tokens, bias=True, softcap=2.0, seed=seed + 100)
    policy = distribution(hidden, head, temperature)
    reference = distribution(reference_hidden, reference_head, temperature)
    kl = token_kl(hidden, head, reference_hidden, reference_head, temperature, chunk_tokens)
    torch.testing.assert_close(kl, (policy.exp() * (policy - reference)).sum(1).detach())
    assert not kl.requires_grad
    assert (token_kl(hidden, head, hidden, head, temperature, chunk_tokens) == 0).all()


def test_kl_of_low_precision_and_of_unlikely_tokens() -> None:
    hidden, head, _ = problem(8, torch.bfloat16)
    reference_hidden, reference_head, _ = problem(8, torch.bfloat16, seed=1)
    kl = token_kl(hidden * 1e4, head, reference_hidden * 1e4, reference_head, 1.0, 3)
    assert kl.dtype == torch.float32
    assert kl.isfinite().all()


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
    with refuses(RefusedError, "training.head_not_linear", head="Adapted"):
        output_head(model)


def test_a_diverged_model_is_not_refused() -> None:
    model = copy.deepcopy(causal_model("Llama"))
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    assert output_head(model).weight.isnan().all()


def widened(tensor: Tensor) -> Tensor:
    return tensor.detach().float().requires_grad_()


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_head_in_float32_rounds_nothing_between_bfloat16_ends(softcap: float | None) -> None:
    """Values and gradients are those of the same numbers in float32; only what leaves for the layers is rounded."""
    hidden, head, targets = problem(9, torch.bfloat16, bias=True, multiplier=0.8, softcap=softcap)
    assert head.bias is not None
    wide_hidden, wide_head = widened(hidden), replace(head, weight=widened(head.weight), bias=widened(head.bias))
    expected = naive(wide_hidden, wide_head, targets, 0.7)
    for weight in (head.weight, head.bias):
        weight.grad_dtype = torch.float32
    found = token_scores(hidden, replace(head, in_float32=True), targets, 0.7, chunk_tokens=4, entropy_grad=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    of_hidden, *of_head = gradients(found, hidden, head)
    expected_of_hidden, *expected_of_head = gradients(expected, wide_hidden, wide_head)
    torch.testing.assert_close(of_head, expected_of_head, rtol=1e-5, atol=1e-6)
    assert of_hidden.dtype == torch.bfloat16
    torch.testing.assert_close(of_hidden.float(), expected_of_hidden, rtol=2**-8, atol=1e-6)
    rounded = token_scores(hidden, head, targets, 0.7)[0]
    assert float((rounded - expected[0]).detach().abs().max()) > 1e-3, "else there is nothing to see"
