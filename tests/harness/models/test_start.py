"""Starting weights are copied back, and activation checkpointing changes no gradient."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.config.model_source import TINY
from harness.errors import RefusedError
from harness.executors import slots
from harness.models import start as starting_point
from harness.models.language_model import LanguageModel, load_model
from harness.models.lora import adapted_layers, has_adapters
from harness.models.start import StartingPoint, set_activation_checkpointing
from harness.training.sequences import score_completions
from tests.cuda.device import ROOT
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.causal_models import causal_model
from tests.refusals import refuses

LORA = {"model.lora.type": "lora", "model.lora.rank": 4}
SOURCE = "builtin:tiny"


def start_weights() -> dict[str, Tensor]:
    return dict(load_model(SOURCE).model.state_dict())


def assert_at_start(model: PreTrainedModel) -> None:
    state = model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in start_weights().items())
    assert all(weight.grad is None for weight in model.parameters())


def train_a_little(model: PreTrainedModel) -> None:
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.ones_like(weight)
            with torch.no_grad():
                weight.add_(1.0)


def spec(settings: dict[str, Any] | None = None, seed: int = 0) -> Any:
    return small_spec(settings, seed)


class TestGet:
    def test_gives_the_start_again_after_training(self) -> None:
        start = StartingPoint()
        model = start.get(spec(), SOURCE).model
        train_a_little(model)
        assert start.get(spec(), SOURCE).model is model, "a model is loaded once"
        assert_at_start(model)

    @pytest.mark.parametrize(
        ("dtype", "float32", "expected"),
        [
            ("auto", False, torch.float32),
            ("float32", False, torch.float32),
            ("bfloat16", False, torch.bfloat16),
            ("bfloat16", True, torch.float32),
        ],
    )
    def test_is_in_the_dtype_of_the_spec_or_in_float32(self, dtype: str, float32: bool, expected: torch.dtype) -> None:
        model = StartingPoint().get(spec({"model.dtype": dtype}), SOURCE, float32).model
        assert {weight.dtype for weight in model.parameters()} == {expected}

    @pytest.mark.parametrize(
        "change", [{"model.dtype": "bfloat16"}, {"model.chat_template": "plain"}, {"model.trust_remote_code": True}]
    )
    def test_loads_again_what_is_asked_for_otherwise(self, change: dict[str, Any]) -> None:
        start = StartingPoint()
        assert start.get(spec(), SOURCE) is start.get(spec(), SOURCE)
        changed = start.get(spec(change), SOURCE)
        assert changed is not start.get(spec(), SOURCE)
        assert changed.wanted_chat_template == change.get("model.chat_template", "auto")

    def test_frees_the_last_model_before_it_loads_the_next(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both together may not fit into the memory."""
        start = StartingPoint()
        last = [weakref.ref(weight) for weight in start.for_training(spec(LORA), SOURCE).model.parameters()]
        last += [weakref.ref(weight) for weight in start._weights.values()]
        alive: list[bool] = []

        def load(*asked: Any) -> LanguageModel:
            gc.collect()
            alive.extend(weight() is not None for weight in last)
            return load_model(*asked)

        monkeypatch.setattr(starting_point, "load_model", load)
        start.get(spec(), f"path:{TINY}")
        assert len(alive) == len(last) and not any(alive)

    def test_cuda_that_is_not_there_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(slots, "visible_gpus", list)
        with refuses(RefusedError, "models.cuda_device_missing"):
            StartingPoint().get(spec({"train.device": "cuda"}), SOURCE)
        with pytest.raises(RefusedError, match="cuda:1"):
            StartingPoint().get(spec({"train.device": "cuda:1"}), SOURCE)

    @pytest.mark.parametrize(("share", "limited"), [("0.25", [0.25]), ("1", [])])
    def test_a_process_takes_no_more_memory_than_its_share(
        self, share: str, limited: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[float] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
        monkeypatch.setenv(slots.SHARE, share)
        assert (starting_point._device("auto"), given) == ("cuda", limited)
        assert (starting_point._device("cpu"), given) == ("cpu", limited)


PRISTINE = """
import torch
from tests.cuda import device
device.install()
from harness.models.start import StartingPoint
from tests.harness.run.small import small_spec
spec, start = small_spec({"train.device": "cuda"}), StartingPoint()
model = start.get(spec, spec.model.source).model
assert all(not weight.is_cuda and weight.is_pinned() for weight in start._weights.values())
before = {name: weight.cpu() for name, weight in model.state_dict().items()}
with torch.no_grad():
    for weight in model.parameters():
        assert weight.is_cuda
        weight.mul_(3)
device.ledger.waits.clear()
assert start.get(spec, spec.model.source).model is model
assert not device.ledger.waits, device.ledger.waits
assert all(torch.equal(weight.cpu(), before[name]) for name, weight in model.state_dict().items())
"""


@pytest.mark.slow
def test_the_start_of_a_gpus_model_lies_in_pinned_memory_and_comes_back_without_waiting() -> None:
    done = subprocess.run([sys.executable, "-c", PRISTINE], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


class TestForTraining:
    def test_arms_with_and_without_adapters_can_alternate(self) -> None:
        start = StartingPoint()
        tokens = torch.tensor([[4, 13, 5, 14]])
        expected = load_model(SOURCE).model(tokens).logits
        of_adapters = None
        for _ in range(2):
            for settings in ({}, LORA):
                model = start.for_training(spec(settings), SOURCE).model
                assert torch.equal(model(tokens).logits, expected)
                assert all(weight.grad is None for weight in model.parameters())
                if settings:
                    assert len(adapted_layers(model)) == 14
                    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == {
                        name for name in model.state_dict() if "lora" in name
                    }
                    learned = [layer.A.clone() for layer in adapted_layers(model)]
                    assert of_adapters is None or all(map(torch.equal, learned, of_adapters))
                    of_adapters = learned
                else:
                    assert model is start.get(spec(), SOURCE).model and not has_adapters(model)
                    assert all(weight.requires_grad for weight in model.parameters())
                train_a_little(model)
                assert not torch.equal(model(tokens).logits, expected)
        assert_at_start(start.get(spec(), SOURCE).model)

    def test_adapters_are_fixed_by_the_seed(self) -> None:
        start = StartingPoint()

        def first(settings: dict[str, Any], seed: int) -> Tensor:
            return adapted_layers(start.for_training(spec(settings, seed), SOURCE).model)[0].A.clone()

        of_seed_0 = first(LORA, 0)
        assert not torch.equal(first(LORA, 1), of_seed_0)
        assert torch.equal(first(LORA, 0), of_seed_0)
        assert torch.equal(first(LORA | {"train.learning_rate": 0.5}, 0), of_seed_0)
        assert [len(first(LORA | {"model.lora.rank": rank}, 0)) for rank in (2, 4)] == [2, 4]

    def test_adapters_are_put_on_the_model_that_is_loaded(self) -> None:
        start = StartingPoint()
        for dtype in ("float32", "bfloat16"):
            model = start.for_training(spec(LORA | {"model.dtype": dtype}), SOURCE).model
            assert {str(weight.dtype) for weight in model.parameters()} == {f"torch.{dtype}"}

    def test_activation_checkpointing_is_on_where_it_is_asked_for(self) -> None:
        start = StartingPoint()

        def on(settings: dict[str, Any]) -> list[bool]:
            model = start.for_training(spec(settings), SOURCE).model
            return [layer.gradient_checkpointing for layer in model.get_decoder().layers]

        checkpointed = {"train.activation_checkpointing": True}
        assert on(checkpointed) == on(checkpointed | LORA) == [True, True]
        assert on({}) == on(LORA) == [False, False]
        start.for_training(spec(checkpointed), SOURCE)
        plain = start.get(spec(checkpointed), SOURCE).model
        assert not plain.get_decoder().layers[0].gradient_checkpointing


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
    backward(model)  # the first pass of a model is compared with its own way
    passes = count_passes(model, ATTENTION.get(architecture, "self_attn"))
    expected = backward(model)
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
    with refuses(RefusedError, "models.activation_checkpointing_not_supported", model="LlamaForCausalLM"):
        set_activation_checkpointing(rollouts.model(), on=True)
    set_activation_checkpointing(rollouts.model(), on=False)
