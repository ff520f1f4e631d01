"""The estimate against what torch really holds: exactly for weights and optimiser, within a fifth for activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from harness.config.run_spec import TrainSpec
from harness.engines.torch import CACHE_BYTES_CPU, TORCH
from harness.engines.vllm import CPU_CACHE_BYTES
from harness.models.language_model import load_model
from harness.plan import memory
from harness.plan.memory import MemoryEstimate, activation_bytes, estimate_memory, in_words
from harness.plan.model_shape import ModelShape
from harness.sampling.store import CHUNK_SAMPLES
from harness.training.optimizer import ClippedAdamW
from harness.training.sequences import Sequences, completion_hidden
from tests.harness.run.small import small_spec


def parts(cuda: bool = False, **settings: Any) -> dict[str, int]:
    return estimated(cuda, **settings).parts_bytes


def estimated(cuda: bool = False, **settings: Any) -> MemoryEstimate:
    estimate = estimate_memory(small_spec({key.replace("__", "."): value for key, value in settings.items()}), cuda)
    assert estimate is not None
    return estimate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_gradients_and_optimizer_are_what_torch_holds(dtype: torch.dtype) -> None:
    model = load_model("builtin:tiny").model.to(dtype)
    optimizer = ClippedAdamW(TrainSpec(steps=1, learning_rate=1e-3), {"policy": model.parameters()})
    optimizer.begin(1)
    optimizer.step(0.0)
    state = optimizer.state_dict()
    moments = [value for of_weight in state["state"].values() for name, value in of_weight.items() if name != "step"]
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    expected = parts(model__dtype="float32" if dtype == torch.float32 else "bfloat16")
    assert held(model.parameters()) == expected["weights"]
    assert held(gradients) == expected["gradients"]
    assert held(moments) + held(state["masters"]) == expected["optimizer"]


def held(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Gemma3Text"])
def test_activations_are_within_a_fifth_of_what_autograd_keeps(kind: str, dtype: torch.dtype) -> None:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    shape = ModelShape.of_config(config.to_dict())
    assert shape is not None
    tokens, kept = kept_bytes(model)
    assert activation_bytes(shape, tokens, dtype.itemsize, checkpointing=False) == pytest.approx(kept, rel=0.2)


def kept_bytes(model: Any) -> tuple[int, int]:
    """Tokens of a training pass, and the bytes that autograd keeps for its backward pass, weights apart."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    sequences = Sequences([[1 + row // 4] * 32 for row in range(16)], torch.ones(16, 64).long(), torch.full((16,), 64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, _, _ = completion_hidden(model, sequences, torch.arange(16), 0)
    assert hidden.requires_grad
    return 4 * 32 + 16 * 63, sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer() -> None:
    shape = ModelShape(4, 10, 20, 10, 10, 5, 100, True)
    one_layer = activation_bytes(replace(shape, layers=1), 1, 4, False) - activation_bytes(
        replace(shape, layers=0), 1, 4, False
    )
    without, with_it = (activation_bytes(shape, 7, 4, checkpointing) for checkpointing in (False, True))
    assert without - with_it == 7 * (3 * one_layer - 4 * 4 * 10)


def test_copies_are_those_that_the_spec_asks_for() -> None:
    weights = parts(train__reference_rows=0)["copies"]
    assert weights == parts(train__reference_rows=0)["weights"], "the starting weights, always"
    assert parts(train__reference_rows=4)["copies"] == 2 * weights
    kl: Any = {"objective__kl__where": "loss", "objective__kl__beta": 0.1}
    assert parts(train__reference_rows=4, **kl)["copies"] == 2 * weights, "one frozen copy serves both"
    renewed: Any = {**kl, "objective__kl__reference": "refreshed"}
    assert parts(train__reference_rows=4, **renewed)["copies"] == 3 * weights
    at_start: Any = {**renewed, "objective__kl__reference": "iteration_start"}
    assert parts(train__reference_rows=4, **at_start)["copies"] == 2 * weights, "old log-probs serve"
    assert parts(train__reference_rows=0, rollout__sampler="round", rollout__round_steps=2,
                 objective__rule__type="policy_gradient")["copies"] == 2 * weights  # fmt: skip
    assert parts(train__reference_rows=0, algorithm="dpo")["copies"] == 2 * weights
    assert parts(train__reference_rows=0, algorithm="simpo")["copies"] == weights


def test_adapters_train_little_and_need_a_merged_copy() -> None:
    full = estimated(train__reference_rows=0)
    lora = estimated(train__reference_rows=0, model__lora__type="lora", model__lora__rank=2)
    assert lora.trained_parameters < full.trained_parameters == full.parameters == lora.parameters
    assert lora.parts_bytes["optimizer"] == 8 * lora.trained_parameters
    assert lora.parts_bytes["gradients"] == 4 * lora.trained_parameters
    assert lora.parts_bytes["weights"] == 4 * (lora.parameters + lora.trained_parameters)
    assert lora.parts_bytes["copies"] == 2 * full.parts_bytes["copies"]


def test_a_critic_with_a_trunk_of_its_own_is_a_second_model_that_is_trained() -> None:
    own, shared = (parts(algorithm="ppo", objective__critic__trunk=trunk) for trunk in ("own", "shared"))
    for part in ("weights", "gradients", "optimizer"):
        assert own[part] == 2 * shared[part]


def test_a_critic_of_adapters_trains_adapters() -> None:
    adapters: Any = {"model__lora__type": "lora", "model__lora__rank": 4}
    own, shared = (parts(algorithm="ppo", objective__critic__trunk=trunk, **adapters) for trunk in ("own", "shared"))
    assert own["gradients"] == 2 * shared["gradients"] < shared["weights"]


def test_the_device_decides_width_and_engine() -> None:
    auto_device: Any = {"model__source": "hf:Qwen/Qwen2.5-0.5B-Instruct", "train__device": "auto"}
    on_cpu, auto = estimated(**auto_device), estimated(cuda=True, **auto_device)
    assert (on_cpu.device, auto.device) == ("cpu", "cuda")
    assert on_cpu.parts_bytes["weights"] == 2 * auto.parts_bytes["weights"]
    assert (on_cpu.engine_frac, auto.engine_frac) == (0.0, 0.3)
    assert "kv_cache" in on_cpu.parts_bytes
    assert "kv_cache" not in auto.parts_bytes
    assert auto.needed_bytes(10**12) == auto.total_bytes + 3 * 10**11
    vllm_cpu = estimated(rollout__engine="vllm")
    assert vllm_cpu.parts_bytes["vllm"] == 4 * vllm_cpu.parameters + CPU_CACHE_BYTES
    torch_cuda = estimated(train__device="cuda", rollout__engine="torch")
    assert (torch_cuda.device, torch_cuda.engine_frac) == ("cuda", 0)


def test_passes_are_as_large_as_budget_row_and_batch_allow() -> None:
    shape = ModelShape(2, 8, 16, 8, 8, 4, 50, True)

    def tokens(shape: ModelShape = shape, **settings: Any) -> int:
        given = {"rollout.prompts_per_step": 4, "rollout.samples_per_prompt": 2, "rollout.max_completion_tokens": 44}
        return memory.micro_batch_tokens(
            small_spec(given | {k.replace("__", "."): v for k, v in settings.items()}), shape
        )

    row = memory.PROMPT_TOKENS + 44
    assert tokens(train__micro_batch_tokens=1000) == 1000
    assert tokens(train__micro_batch_tokens=10) == row, "a row is never split"
    assert tokens(train__micro_batch_tokens=10**6) == 8 * row, "there is no more than the batch"
    assert tokens(replace(shape, context_tokens=64), train__micro_batch_tokens=10) == 64


def test_an_evaluation_asks_for_a_chunk_at_once() -> None:
    assert memory.EVALUATED_AT_ONCE == CHUNK_SAMPLES


def test_the_cache_holds_keys_and_values_twice() -> None:
    spec = small_spec(
        {"rollout.prompts_per_step": 2, "rollout.samples_per_prompt": 2, "eval.max_completion_tokens": 44}
    )
    shape = ModelShape(3, 8, 16, 8, 6, 4, 50, True)
    a_token = 2 * 3 * 6 * 4
    logits = 1024 * 50 * 8

    def cache(shape: ModelShape) -> float:
        return TORCH.memory(memory.drawing_load(spec, shape, 4, "cpu")).parts_bytes["kv_cache"]

    assert cache(shape) == 2 * 1024 * (256 + 44) * a_token + logits
    assert cache(replace(shape, layers=10**6)) == 2 * CACHE_BYTES_CPU + logits


def test_in_words() -> None:
    estimate = MemoryEstimate("cuda", 10, 10, {"weights": 1_000_000_000, "logits": 2_500_000_000, "copies": 7}, 0.4)
    assert in_words(estimate.as_json()) == (
        "about 3.5 GB a cell on cuda and 40% of the GPU's memory for the engine (logits 2.5, weights 1.0)"
    )
    assert in_words(None) == "unknown, the model's size is not at hand"
    assert estimate_memory(small_spec({"model.source": "hf:nobody/nothing"}), cuda=False) is None
