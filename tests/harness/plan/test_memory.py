"""The estimate against what torch really holds: exactly for weights and optimiser, within a fifth for activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from harness.config.train import TrainSpec
from harness.engines.torch import TORCH
from harness.engines.torch.sizes import CACHE_BYTES_CPU
from harness.engines.vllm.limits import CPU_CACHE_BYTES
from harness.models.language_model import load_model
from harness.plan import memory
from harness.plan.memory import FLOAT32_BYTES, MemoryEstimate, activation_bytes, estimate_memory, in_words
from harness.plan.model_shape import ModelShape, find_shape
from harness.sampling.evaluation import CHUNK_SAMPLES
from harness.training.optimizer import ClippedOptimizer
from harness.training.sequences import BatchPart, Sequences
from harness.training.torch_optimizers import layer_matrices
from tests.frozen import frozen
from tests.harness.run.small import small_spec

SAVING = "saving a checkpoint"


def parts(cuda: bool = False, **settings: Any) -> dict[str, int]:
    return estimated(cuda, **settings).parts_bytes


def estimated(cuda: bool = False, **settings: Any) -> MemoryEstimate:
    estimate = estimate_memory(small_spec({key.replace("__", "."): value for key, value in settings.items()}), cuda)
    assert estimate is not None
    return estimate


F32, BF16 = torch.float32, torch.bfloat16
OPTIMIZERS: list[tuple[dict[str, Any], torch.dtype]] = [
    ({"type": "adamw"}, F32),
    ({"type": "adamw"}, BF16),
    ({"type": "sgd"}, BF16),
    ({"type": "sgd", "momentum": 0.0}, F32),
    ({"type": "muon"}, BF16),
]


@pytest.mark.parametrize(("optimizer", "dtype"), OPTIMIZERS, ids=str)
def test_weights_gradients_and_optimizer_are_what_torch_holds(optimizer: dict[str, Any], dtype: torch.dtype) -> None:
    model = load_model("builtin:tiny").model.to(dtype)
    train = TrainSpec.model_validate({"steps": 1, "learning_rate": 1e-3, "optimizer": optimizer})
    made = ClippedOptimizer(train, {"policy": model.parameters()}, layer_matrices(model))
    made.begin(1)
    made.step(0.0)
    state = made.state_dict()
    of_weights = [*state["state"].values(), *state.get("matrices", {"state": {}})["state"].values()]
    moments = [value for of_weight in of_weights for name, value in of_weight.items() if name != "step"]
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    expected = parts(model__dtype="float32" if dtype == torch.float32 else "bfloat16", train__optimizer=optimizer)
    assert held(model.parameters()) == expected["weights"]
    assert held(gradients) == expected["gradients"]
    assert held(moments) + held(state["masters"]) == expected.get("optimizer", 0)


def held(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype"), [("Llama", F32), ("Qwen2", BF16), ("Qwen3", F32), ("Gemma3Text", BF16)], ids=str
)
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
    tokens, kept_in_blocks = kept_bytes(model)
    model.model.register_forward_pre_hook(lambda *given: None)  # then transformers computes the layers, as on a GPU
    _, kept = kept_bytes(model)
    estimate = activation_bytes(shape, tokens, dtype.itemsize, checkpointing=False)
    assert estimate == pytest.approx(kept, rel=0.2)
    assert kept_in_blocks <= kept


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
        hidden = BatchPart.of([model], sequences, torch.arange(16), 0).hidden(model)
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
    assert parts(train__reference_rows=0, rollout__staleness_steps=2)["copies"] == 2 * weights
    assert parts(train__reference_rows=0, algorithm="dpo")["copies"] == 2 * weights
    assert parts(train__reference_rows=0, algorithm="simpo")["copies"] == weights
    asks_start: Any = {"reward__parts__vr_cli": 1.0}
    assert parts(train__reference_rows=0, **asks_start)["copies"] == 2 * weights
    assert parts(train__reference_rows=4, **asks_start)["copies"] == 2 * weights, "one frozen copy serves both"
    asks_other = parts(train__reference_rows=0, reward__vr_cli__generator="scratch:tiny", **asks_start)
    assert (asks_other["copies"], asks_other["generator"]) == (weights, weights)


def test_a_rollout_in_another_dtype_draws_from_a_copy() -> None:
    own, rounded = estimated(), estimated(rollout__dtype="bfloat16")
    assert "rollout_copy" not in own.held_bytes
    assert 2 * rounded.held_bytes["rollout_copy"] == own.held_bytes["weights"] == rounded.held_bytes["weights"]
    # Keys and values halve; logits are also there as float32, which tokens are drawn from.
    caches = [one.phases_bytes["drawing"]["kv_cache"] for one in (rounded, own)]
    assert caches[0] < 0.75 * caches[1]


def test_a_float32_head_widens_its_weights() -> None:
    plain, wide = (estimated(model__dtype="bfloat16", model__head_dtype=head) for head in ("model", "float32"))
    assert wide.phases_bytes["training"]["float32_head"] == 4 * 21 * 96
    assert wide.held_bytes == plain.held_bytes


def test_adapters_train_little_and_need_a_merged_copy() -> None:
    full = estimated(train__reference_rows=0)
    lora = estimated(train__reference_rows=0, model__lora__type="lora", model__lora__rank=2)
    assert lora.trained_parameters < full.trained_parameters == full.parameters == lora.parameters
    assert lora.parts_bytes["optimizer"] == 8 * lora.trained_parameters
    assert lora.parts_bytes["gradients"] == 4 * lora.trained_parameters
    assert lora.parts_bytes["weights"] == 4 * (lora.parameters + lora.trained_parameters)
    assert lora.parts_bytes["copies"] == 2 * full.parts_bytes["copies"]


@pytest.mark.parametrize("adapters", [{}, {"model__lora__type": "lora", "model__lora__rank": 4}])
def test_a_critic_with_a_trunk_of_its_own_is_a_second_model_that_is_trained(adapters: Any) -> None:
    own, shared = (parts(algorithm="ppo", objective__critic__trunk=trunk, **adapters) for trunk in ("own", "shared"))
    for part in ("gradients", "optimizer") if adapters else ("weights", "gradients", "optimizer"):
        assert own[part] == 2 * shared[part]
    assert (own["gradients"] < shared["weights"]) == bool(adapters)


def test_the_device_decides_width_and_engine() -> None:
    auto_device: Any = {"model__source": "hf:Qwen/Qwen2.5-0.5B-Instruct", "train__device": "auto"}
    on_cpu, auto = estimated(**auto_device), estimated(cuda=True, **auto_device)
    assert (on_cpu.device, auto.device) == ("cpu", "cuda")
    assert on_cpu.parts_bytes["weights"] == 2 * auto.parts_bytes["weights"]
    in_weights = {one.device: one.held_bytes["copies"] // one.held_bytes["weights"] for one in (on_cpu, auto)}
    assert in_weights == {"cpu": 2, "cuda": 1}, "the untouched start of a GPU's model lies in the host's memory"
    assert (on_cpu.engine_frac, auto.engine_frac) == (0.0, 0.3)
    assert "kv_cache" in on_cpu.phases_bytes["drawing"]
    assert "kv_cache" not in {**auto.held_bytes, **auto.phases_bytes["drawing"]}
    assert auto.needed_bytes(10**12) == auto.total_bytes + 3 * 10**11
    sleeping = replace(auto, frac_only_drawing=True)
    held_bytes = sum(auto.held_bytes.values())
    assert sleeping.needed_bytes(10**12) == held_bytes + 3 * 10**11, "more than training takes besides"
    assert sleeping.needed_bytes(10**9) == auto.total_bytes
    vllm_cpu = estimated(rollout__engine="vllm")
    assert vllm_cpu.held_bytes["vllm"] == 4 * vllm_cpu.parameters + CPU_CACHE_BYTES
    torch_cuda = estimated(train__device="cuda", rollout__engine="torch")
    assert (torch_cuda.device, torch_cuda.engine_frac) == ("cuda", 0)
    assert "kv_cache" in torch_cuda.held_bytes, "graphs keep it"


def test_the_peak_is_what_is_held_and_the_largest_phase() -> None:
    estimate = MemoryEstimate("cpu", 1, 1, {"weights": 5}, {"training": {"a": 2, "b": 3}, "drawing": {"kv": 4}}, 0.0)
    assert (estimate.peak_phase, estimate.total_bytes) == ("training", 10)
    assert estimate.parts_bytes == {"weights": 5, "a": 2, "b": 3}


def test_saving_takes_two_copies_of_what_is_trained() -> None:
    """More than the optimiser's state, unless adapters alone are saved: then that is little too."""
    full, lora = estimated(), estimated(model__lora__type="lora")
    tiny = find_shape("builtin:tiny")
    assert tiny is not None
    saved = sum(weight.numel() for weight in load_model("builtin:tiny").model.state_dict().values())
    assert tiny.saved_parameters == saved
    assert full.phases_bytes[SAVING] == {"checkpoint": 2 * 4 * saved}
    assert lora.phases_bytes[SAVING] == {"checkpoint": 2 * 4 * lora.trained_parameters}
    assert SAVING not in estimated(train__device="cuda").phases_bytes


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
    batch = 4 * memory.PROMPT_TOKENS + 8 * 44
    assert tokens(train__micro_batch_tokens=10**6) == batch, "there is no more, and a prompt is computed once"
    assert tokens(replace(shape, context_tokens=80), train__micro_batch_tokens=10) == 20 + 44, "a part of the context"
    assert tokens(replace(shape, context_tokens=40), train__micro_batch_tokens=10) == 40


def test_an_evaluation_asks_for_a_chunk_at_once() -> None:
    assert memory.EVALUATED_AT_ONCE == CHUNK_SAMPLES


def test_the_cache_holds_keys_and_values_twice() -> None:
    settings = {"rollout.prompts_per_step": 2, "rollout.samples_per_prompt": 2, "eval.max_completion_tokens": 44}
    shape = ModelShape(3, 8, 16, 8, 6, 4, 50, True)
    a_row = (256 + 44) * 2 * 3 * 6 * 4
    logits = 50 * 8

    def cache(shape: ModelShape, **settings_of_eval: int | None) -> float:
        spec = small_spec(settings | {f"eval.{name}": value for name, value in settings_of_eval.items()})
        return TORCH.memory(memory.drawing_load(spec, shape, 4, "cpu")).drawing_bytes["kv_cache"]

    assert cache(shape, problems=None) == 1024 * (2 * a_row + logits), "as many as an evaluation asks for at once"
    assert cache(shape, problems=10, samples=4) == 40 * (2 * a_row + logits)
    rows = CACHE_BYTES_CPU // (a_row * 10**3)
    assert cache(replace(shape, layers=3 * 10**3), problems=None) == rows * (2 * a_row * 10**3 + logits)


@pytest.mark.parametrize("lora", [{}, {"model.lora": {"type": "lora", "rank": 4}}])
def test_a_checkpoint_that_is_evaluated_takes_weights_and_engine_only(lora: dict[str, Any]) -> None:
    trained = small_spec(lora)
    evaluated = trained.model_copy(update={"checkpoint": "builtin:tiny"})
    asks, learns = estimate_memory(evaluated, cuda=False), estimate_memory(trained, cuda=False)
    assert asks is not None and learns is not None
    assert asks.parts_bytes.keys() == {"process", "weights", "copies", "kv_cache"}
    assert asks.parts_bytes["weights"] == learns.parts_bytes["weights"]
    # One as it was loaded, and one with its adapters merged to draw from.
    assert asks.parts_bytes["copies"] == (2 if lora else 1) * FLOAT32_BYTES * asks.parameters
    assert asks.trained_parameters == 0


def test_what_processes_split_is_held_in_parts() -> None:
    """Rows alone: each process holds all. Fully: a part of the optimiser, and the whole policy only to draw from."""
    dtype: Any = {"model__dtype": "bfloat16"}
    alone, rows = parts(**dtype), parts(**dtype, train__processes=4)
    fully = estimated(**dtype, train__processes=4, train__sharding="fully")
    assert rows == alone
    assert fully.parts_bytes["optimizer"] == alone["optimizer"] / 4
    assert fully.parts_bytes["gradients"] == alone["gradients"] / 4
    assert fully.parts_bytes["weights"] == alone["weights"]
    assert fully.parts_bytes["split_weights"] == alone["weights"] / 4, "the reference; masters are in the optimizer"
    assert fully.needed_bytes(0) == 4 * fully.total_bytes


def test_in_words() -> None:
    estimate = MemoryEstimate(
        "cuda", 10, 10, {"weights": 1_000_000_000}, {"training": {"logits": 2_500_000_000, "activations": 7}}, 0.4
    )
    fully = estimated(train__processes=4, train__sharding="fully")
    frozen("plan/memory", "\n".join(in_words(one) for one in (estimate, fully, None)))
    assert estimate_memory(small_spec({"model.source": "hf:nobody/nothing"}), cuda=False) is None


def test_a_judge_is_a_model_of_its_own_that_reads_two_completions_at_once() -> None:
    judge: dict[str, Any] = {"reward__parts": {"correct": 0.0, "pairwise": 1.0}}
    plain, judged = estimated(), estimated(**judge)
    assert judged.held_bytes["judge"] == plain.held_bytes["weights"]
    assert judged.phases_bytes["judging"]["kv_cache"] > plain.phases_bytes["drawing"]["kv_cache"]
    assert "judging" not in plain.phases_bytes
    on_gpu = estimated(True, train__device="cuda", rollout__engine="vllm", **judge)
    # It draws with the torch engine, which keeps its cache on a GPU.
    assert on_gpu.held_bytes["judge_kv_cache"] > 0
    longer = estimated(**judge, reward__pairwise__max_completion_tokens=16)
    assert longer.phases_bytes["judging"]["kv_cache"] > judged.phases_bytes["judging"]["kv_cache"]
