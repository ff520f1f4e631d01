"""The physical limits, against a worked example: one H200, 64 prompts of 110 tokens x 8 completions."""

from __future__ import annotations

import pytest
from roofline_formulas import (
    Device,
    Passes,
    Shape,
    decode_pass_s,
    decode_s,
    forward_flops,
    lognormal_lengths,
    prefill_s,
    step_limit,
)
from transformers import AutoConfig

H200 = Device(bandwidth=4.3e12, flops=7.9e14)
PROMPT_TOKENS, SAMPLES = 110, 8
# Mean 295, cut at 1024: 151k tokens. The spread is the one that the table's decoding times go with.
LENGTHS = lognormal_lengths(64 * SAMPLES, mean=295, longest=1024, spread=0.47)


def shape(
    layers: int, hidden: int, heads: int, kv_heads: int, head: int, intermediate: int, vocabulary: int = 151_936
) -> Shape:
    attention, kv = heads * head, kv_heads * head
    a_layer = hidden * (2 * attention + 2 * kv + 3 * intermediate)
    return Shape(layers, hidden, attention, kv, vocabulary, layers * a_layer)


SHAPES = {
    "smollm2-135m": shape(30, 576, 9, 3, 64, 1536, 49_152),
    "qwen2.5-0.5b": shape(24, 896, 14, 2, 64, 4864),
    "qwen2.5-1.5b": shape(28, 1536, 12, 2, 128, 8960),
    "qwen3-0.6b": shape(28, 1024, 16, 8, 128, 3072),
    "qwen3-1.7b": shape(28, 2048, 16, 8, 128, 6144),
}


@pytest.mark.parametrize(
    ("name", "kv_bytes", "prefill_ms", "decode", "train", "total"),
    [
        ("smollm2-135m", 23_040, 2, 0.31, 0.21, 0.52),
        ("qwen2.5-0.5b", 12_288, 6, 0.39, 0.73, 1.14),
        ("qwen2.5-1.5b", 28_672, 23, 1.14, 2.36, 3.54),
        ("qwen3-0.6b", 114_688, 8, 1.47, 0.91, 2.39),
        ("qwen3-1.7b", 114_688, 25, 2.01, 2.62, 4.66),
    ],
)
def test_the_limit_of_a_step(
    name: str, kv_bytes: int, prefill_ms: float, decode: float, train: float, total: float
) -> None:
    limit = step_limit(SHAPES[name], H200, PROMPT_TOKENS, LENGTHS, SAMPLES)
    assert SHAPES[name].kv_bytes == kv_bytes
    assert limit.prefill_s * 1e3 == pytest.approx(prefill_ms, abs=0.5)
    assert limit.decode_s == pytest.approx(decode, rel=0.015)
    assert limit.train_s == pytest.approx(train, abs=0.007)
    assert limit.score_s == 0
    assert limit.total_s == pytest.approx(total, rel=0.015)


def test_passes_besides_forward_and_backward() -> None:
    qwen = SHAPES["qwen2.5-0.5b"]
    limit = step_limit(qwen, H200, PROMPT_TOKENS, LENGTHS, SAMPLES, Passes(scored=2, recomputed=1))
    assert limit.score_s == pytest.approx(0.49, abs=0.005)
    assert limit.train_s == pytest.approx(0.98, abs=0.005)
    assert limit.total_s == pytest.approx(1.87, rel=0.01)


def test_half_of_the_groups_skipped_and_prompts_shared() -> None:
    qwen = SHAPES["qwen2.5-0.5b"]
    limit = step_limit(qwen, H200, PROMPT_TOKENS, LENGTHS, SAMPLES, trained_frac=0.5, prompts_shared=True)
    assert limit.train_s == pytest.approx(0.30, abs=0.005)
    assert limit.total_s == pytest.approx(0.70, abs=0.01)


def test_optimiser_and_sync() -> None:
    qwen = SHAPES["qwen2.5-0.5b"]
    limit = step_limit(qwen, H200, PROMPT_TOKENS, LENGTHS, SAMPLES)
    assert limit.optimizer_s == pytest.approx(3.4e-3, abs=0.05e-3)
    assert limit.sync_s == pytest.approx(0.46e-3, abs=0.01e-3)
    assert step_limit(qwen, H200, PROMPT_TOKENS, LENGTHS, SAMPLES, separate_engine=False).sync_s == 0


@pytest.mark.parametrize(
    ("name", "speeds"),
    [
        ("qwen2.5-0.5b", {1: 4.3e3, 64: 205e3, 256: 458e3, 512: 577e3, 1024: 663e3}),
        ("qwen2.5-1.5b", {1: 1.4e3, 64: 71e3, 256: 178e3, 512: 237e3, 1024: 250e3}),
        ("qwen3-0.6b", {1: 3.5e3, 64: 66e3, 256: 84e3, 512: 88e3, 1024: 90e3}),
        ("qwen3-1.7b", {1: 1.2e3, 64: 43e3, 256: 72e3, 512: 81e3, 1024: 86e3}),
    ],
)
def test_decoding_at_a_context_of_400(name: str, speeds: dict[int, float]) -> None:
    for rows, tokens_per_s in speeds.items():
        assert rows / decode_pass_s(SHAPES[name], H200, rows, 400) == pytest.approx(tokens_per_s, rel=0.04), rows


def test_decoding_costs_what_is_still_alive() -> None:
    """By hand: two rows at the first position, one at the second and third."""
    small = Shape(layers=1, hidden=2, attention=2, kv=2, vocabulary=5, matmul_weights=10, weight_bytes=4)
    slow = Device(bandwidth=1.0, flops=1e9)
    weights_and_logits = 80 + 20  # (10 + 10 weights) x 4 bytes; 5 logits x 4 bytes
    by_hand = (80 + 2 * 20 + 2 * 3 * 16) + (weights_and_logits + 4 * 16) + (weights_and_logits + 5 * 16)
    assert decode_s(small, slow, 3, [1, 3]) == pytest.approx(by_hand)


def test_decoding_computes_what_it_reads() -> None:
    """By hand, where traffic is free: 2 rows x (20 weights and 3 cached tokens x 2 wide, keys and values) x 2."""
    small = Shape(layers=1, hidden=2, attention=2, kv=2, vocabulary=5, matmul_weights=10)
    assert decode_pass_s(small, Device(bandwidth=1e9, flops=1.0), 2, 3) == pytest.approx(2 * 2 * (20 + 3 * 2 * 2))


def test_prefill_reads_the_weights_at_least_once() -> None:
    qwen = SHAPES["qwen2.5-0.5b"]
    assert prefill_s(qwen, H200, 1, 1) == pytest.approx(qwen.weights * 2 / H200.bandwidth)


def test_padding_is_work() -> None:
    qwen = SHAPES["qwen2.5-0.5b"]
    plain = step_limit(qwen, H200, PROMPT_TOKENS, LENGTHS, SAMPLES)
    padded = step_limit(qwen, H200, PROMPT_TOKENS, LENGTHS, SAMPLES, padding_frac=0.5)
    assert padded.train_s == pytest.approx(2 * plain.train_s)
    assert padded.decode_s == plain.decode_s


def test_a_shared_prompt_is_passed_over_once() -> None:
    """Two completions of one prompt: 4 + 1 + 2 tokens, 1 + 2 with logits; squares 5² + 6² less the prompt's 4² once."""
    small = Shape(layers=1, hidden=2, attention=2, kv=2, vocabulary=5, matmul_weights=10)
    sequences = [(4.0, 1.0), (4.0, 2.0)]
    assert forward_flops(small, sequences) == 2 * 10 * 11 + 2 * 10 * 3 + 2 * 2 * (25 + 36)
    assert forward_flops(small, sequences, prompt_tokens_shared=4) == 2 * 10 * 7 + 2 * 10 * 3 + 2 * 2 * (25 + 36 - 16)


def test_the_shape_of_a_configuration() -> None:
    config = AutoConfig.for_model(
        "llama", num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, vocab_size=49_152,
    )  # fmt: skip
    assert Shape.of(config, weight_bytes=2) == SHAPES["smollm2-135m"]


def test_lengths_have_their_mean_and_limit() -> None:
    assert sum(LENGTHS) / len(LENGTHS) == pytest.approx(295, abs=0.1)
    assert max(LENGTHS) <= 1024
    assert min(LENGTHS) >= 1
