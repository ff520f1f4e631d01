"""The torch engine against transformers' `generate` and against a plain loop, for each architecture it must know.

Random models, tiny, with everything that decoding can get wrong: grouped heads, sliding windows shorter than the
sequences, query norms, biases, softcaps, untied heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from harness.engines.base import Completions, SamplingParams
from harness.engines.torch import engine as torch_engine
from harness.engines.torch import passes as prefill
from harness.engines.torch.decoding import sample
from harness.engines.torch.engine import TorchEngine
from harness.engines.torch.passes import EAGER, GRAPHS, BatchShapes, LayerMasks
from harness.errors import RefusedError
from harness.random_keys import random_key
from tests.refusals import refuses

pytestmark = pytest.mark.slow

VOCABULARY, WINDOW, TOKENS = 50, 6, 14
EOS = [3, 4, 5]
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-sliding": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, layer_types=SLIDING),
    "qwen3": Qwen3Config(**SIZES, attention_bias=True),
    "gemma3": Gemma3TextConfig(
        **SIZES, sliding_window=WINDOW, layer_types=SLIDING, query_pre_attn_scalar=5, final_logit_softcapping=8.0
    ),
    "granite": GraniteConfig(**SIZES, embedding_multiplier=3.0, logits_scaling=2.0),
}
PROMPTS = [[7, 8, 9], [10], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20], [7, 8, 9, 21, 22]]
LOOKS = {"eager": EAGER, "eager, looked at rarely": BatchShapes(False, 5), "as graphs": GRAPHS}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    config: PreTrainedConfig = CONFIGS[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        for weight in model.parameters():
            if weight.ndim == 1:  # biases are made as 0 and scales as 1
                torch.nn.init.normal_(weight, 0.5, 0.3)
    return model.eval()


@pytest.fixture(params=LOOKS)
def engine(request: pytest.FixtureRequest, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> TorchEngine:
    """With several chunks, and a prefill in parts."""
    monkeypatch.setattr(torch_engine, "EAGER", LOOKS[request.param])
    monkeypatch.setattr(torch_engine, "MAX_ROWS", 18)
    monkeypatch.setattr(prefill, "PREFILL_TOKENS", 20)
    return TorchEngine(model, 0, EOS, decode=lambda tokens: "")


def rows_of(completions: Completions) -> list[list[int]]:
    return [row[:length] for row, length in zip(completions.tokens.tolist(), completions.lengths.tolist(), strict=True)]


def test_greedy_is_that_of_generate(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, 0, EOS, decode=lambda tokens: "")
    drawn = engine.generate(PROMPTS, torch.zeros((len(PROMPTS), 1), dtype=torch.int64), SamplingParams(TOKENS, 0))
    for prompt, completion in zip(PROMPTS, rows_of(drawn), strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
        assert completion == expected[0, len(prompt) :].tolist()


def plain_loop(
    model: PreTrainedModel, prompt: Sequence[int], key: Tensor, params: SamplingParams
) -> tuple[list[int], list[float]]:
    """Each token by a pass over all that stands before it, without padding or a cache."""
    tokens: list[int] = []
    logps: list[float] = []
    while len(tokens) < params.max_completion_tokens and not (tokens and tokens[-1] in EOS):
        logits = model(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[:, -1]
        token, logp = sample(logits, key[None], len(tokens), params.temperature, params.top_p, params.top_k)
        tokens.append(int(token))
        logps.append(float(logp))
    return tokens, logps


@pytest.mark.parametrize("params", [SamplingParams(TOKENS), SamplingParams(TOKENS, 1.7, top_p=0.9, top_k=20)])
@torch.inference_mode()
def test_samples_are_those_of_a_plain_loop(engine: TorchEngine, model: PreTrainedModel, params: SamplingParams) -> None:
    keys = torch.tensor([[random_key(row, "rollout", sample=column) for column in range(6)] for row in range(4)])
    drawn = engine.generate(PROMPTS, keys, params)
    rows = rows_of(drawn)
    assert {len(row) for row in rows} >= {TOKENS} and min(map(len, rows)) < TOKENS, "some must end early, some not"
    assert max(map(len, rows)) + max(map(len, PROMPTS)) > WINDOW + TOKENS
    for index, (tokens, logps) in enumerate(zip(rows, drawn.logps.tolist(), strict=True)):
        prompt, key = PROMPTS[index // 6], keys[index // 6, index % 6]
        expected_tokens, expected_logps = plain_loop(model, prompt, key, params)
        assert tokens == expected_tokens
        assert logps[: len(tokens)] == pytest.approx(expected_logps, abs=2e-4)


def test_layers_are_called_one_by_one_where_that_is_all_that_the_model_does(model: PreTrainedModel) -> None:
    """Neither is Gemma's softcap, nor are Granite's multipliers."""
    engine = TorchEngine(model, 0, EOS, decode=lambda tokens: "")
    engine.generate(PROMPTS, torch.zeros((len(PROMPTS), 1), dtype=torch.int64), SamplingParams(3))
    assert engine.one_token_pass.by_layers == (model.config.model_type not in ("gemma3_text", "granite"))


def test_layers_of_another_kind_are_refused() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"])
    model.config.layer_types = ["full_attention", "linear_attention", "full_attention"]
    with refuses(RefusedError, "engines.layer_kind_not_supported", model="Qwen3ForCausalLM", layers="linear_attention"):
        LayerMasks(model)


@pytest.mark.parametrize("of_layers", [False, True])
def test_positions_that_follow_the_longest_sequence_are_refused(of_layers: bool) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.config.rope_parameters = {"full_attention": rope} if of_layers else rope
    with refuses(RefusedError, "engines.rope_frequencies_not_steady", model="LlamaForCausalLM"):
        TorchEngine(model, 0, EOS, decode=lambda tokens: "")
