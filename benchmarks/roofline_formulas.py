"""The physical limit of a GRPO step: how long the arithmetic and the memory traffic alone must take.

Phases follow one another, and each takes the longer of its arithmetic and its traffic. Two limits are told apart:
`algorithmic` is that of the least work that gives the same gradient (nothing scored twice, groups without a signal
skipped, prompts shared by their group), and compares systems; `done` is that of the work that was done, padding and
second passes included, and tells how well the kernels are used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LOGIT_BYTES = 4
"""Logits are float32."""
OPTIMIZER_BYTES = 30
"""A weight, read and written: a bfloat16 gradient and weight, float32 moments and master weight."""
SYNC_BYTES = 4
"""A weight, read and written in bfloat16."""


@dataclass(frozen=True)
class Device:
    """What a machine can do: bytes per second (read and written), floating-point operations per second."""

    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Shape:
    """What a decoder costs. `matmul_weights`: of all matrices but the output head; `weight_bytes`: of one weight."""

    layers: int
    hidden: int
    attention: int
    """Width of all query heads together."""
    kv: int
    """Width of all key heads together."""
    vocabulary: int
    matmul_weights: int
    weight_bytes: int = 2

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        """Those that a decoding pass reads."""
        return self.matmul_weights + self.head_weights

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.layers * self.kv * self.weight_bytes

    @classmethod
    def of(cls, config: PretrainedConfig, weight_bytes: int) -> Shape:
        """The shape of a Llama, Qwen2, Qwen3 or Gemma3 text model: gated feed-forward layers, grouped keys."""
        hidden, heads = config.hidden_size, config.num_attention_heads
        head = getattr(config, "head_dim", None) or hidden // heads
        attention, kv = heads * head, config.num_key_value_heads * head
        a_layer = 2 * hidden * attention + 2 * hidden * kv + 3 * hidden * config.intermediate_size
        layers = config.num_hidden_layers
        return cls(layers, hidden, attention, kv, config.vocab_size, layers * a_layer, weight_bytes)


@dataclass(frozen=True)
class Passes:
    """Passes over the training tokens besides forward and backward of the policy."""

    scored: float = 0.0
    """Forward passes without gradient: old and reference log-probs."""
    recomputed: float = 0.0
    """Forward passes that activation checkpointing repeats."""


@dataclass(frozen=True)
class Limit:
    """Seconds of each phase."""

    prefill_s: float
    decode_s: float
    score_s: float
    train_s: float
    optimizer_s: float
    sync_s: float

    @property
    def total_s(self) -> float:
        return self.prefill_s + self.decode_s + self.score_s + self.train_s + self.optimizer_s + self.sync_s


def decode_pass_s(shape: Shape, device: Device, rows: float, context: float) -> float:
    """One token for each of `rows` sequences whose caches hold `context` tokens on average."""
    traffic = shape.weights * shape.weight_bytes + rows * (context * shape.kv_bytes + shape.vocabulary * LOGIT_BYTES)
    arithmetic = rows * (2 * shape.weights + 4 * shape.layers * shape.attention * context)
    return max(traffic / device.bandwidth, arithmetic / device.flops)


def decode_s(shape: Shape, device: Device, prompt_tokens: float, lengths: Sequence[int]) -> float:
    """Completions of these lengths, all decoded together; one that has ended costs nothing."""
    total_s = 0.0
    for position in range(max(lengths, default=0)):
        alive = sum(length > position for length in lengths)
        total_s += decode_pass_s(shape, device, alive, prompt_tokens + position)
    return total_s


def prefill_s(shape: Shape, device: Device, prompts: int, prompt_tokens: float) -> float:
    """Every prompt once, whatever the size of its group."""
    arithmetic = prompts * (
        2 * shape.matmul_weights * prompt_tokens + 2 * shape.layers * shape.attention * prompt_tokens**2
    )
    return max(arithmetic / device.flops, shape.weights * shape.weight_bytes / device.bandwidth)


def forward_flops(shape: Shape, sequences: Sequence[tuple[float, float]], prompt_tokens_shared: float = 0.0) -> float:
    """One forward pass over (prompt tokens, completion tokens) of each sequence. Only completion tokens have logits.

    prompt_tokens_shared: how many of all prompt tokens another sequence has passed through already, so that they are
    taken off; prompts are then as good as equally long. Attention is causal: half of the square.
    """
    completion_tokens = sum(completion for _, completion in sequences)
    all_tokens = sum(prompt + completion for prompt, completion in sequences) - prompt_tokens_shared
    squares = sum((prompt + completion) ** 2 for prompt, completion in sequences)
    if prompt_tokens_shared:
        squares -= prompt_tokens_shared * max(prompt for prompt, _ in sequences)
    return (
        2 * shape.matmul_weights * all_tokens
        + 2 * shape.head_weights * completion_tokens
        + 2 * shape.layers * shape.attention * squares
    )


def step_limit(
    shape: Shape,
    device: Device,
    prompt_tokens: float,
    lengths: Sequence[int],
    samples: int,
    passes: Passes = Passes(),
    trained_frac: float = 1.0,
    prompts_shared: bool = False,
    padding_frac: float = 0.0,
    separate_engine: bool = True,
) -> Limit:
    """The limit of one on-policy step: completions of these lengths, `samples` for each prompt.

    trained_frac: share of the groups that carry a signal, and so of the tokens that training must pass over.
    prompts_shared: training passes over a prompt once for its group. padding_frac: of the tokens that training passed
    over. separate_engine: the sampler has a copy of the weights, to be written once a step.
    """
    count = len(lengths)
    sequences = [(prompt_tokens, float(length)) for length in lengths]
    shared = prompt_tokens * (count - count / samples) if prompts_shared else 0.0
    forward_s = forward_flops(shape, sequences, shared) * trained_frac / (1 - padding_frac) / device.flops
    return Limit(
        prefill_s=prefill_s(shape, device, count // samples, prompt_tokens),
        decode_s=decode_s(shape, device, prompt_tokens, lengths),
        score_s=forward_s * passes.scored,
        train_s=forward_s * (3 + passes.recomputed),
        optimizer_s=OPTIMIZER_BYTES * shape.weights / device.bandwidth,
        sync_s=SYNC_BYTES * shape.weights / device.bandwidth if separate_engine else 0.0,
    )


def lognormal_lengths(count: int, mean: float, longest: int, spread: float) -> list[int]:
    """Quantiles of a log-normal distribution cut at `longest`, with this mean; spread: of the logarithm."""
    quantiles = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]

    def lengths(median: float) -> list[float]:
        return [min(float(longest), max(1.0, median * math.exp(spread * quantile))) for quantile in quantiles]

    low, high = 0.0, 2.0 * longest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(lengths(middle)) < mean * count else (low, middle)
    return [round(length) for length in lengths(low)]


def measure_device(device: str, threads: int, repetitions: int = 5) -> Device:
    """Time a copy of 1 GiB and a matrix product (CPU: 2048 cubed in float32; CUDA: 8192 cubed in bfloat16) on this
    machine; the best of the repetitions."""
    import torch

    cuda = device.startswith("cuda")
    torch.set_num_threads(threads)
    size, dtype = (8192, torch.bfloat16) if cuda else (2048, torch.float32)
    source = torch.ones(2**28, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)

    def best_s(work: Callable[[], object]) -> float:
        times = []
        for _ in range(repetitions + 1):
            started_s = time.perf_counter()
            work()
            if cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started_s)
        return min(times[1:])

    return Device(
        bandwidth=2 * 4 * 2**28 / best_s(lambda: target.copy_(source)),
        flops=2 * size**3 / best_s(lambda: torch.mm(left, right, out=product)),
    )
