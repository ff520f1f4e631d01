"""Random little models of several architectures, with logits that are far from uniform."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
KNOBS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 2.0},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 5.0},
    "Phi": {},
    "GPT2": {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
}


def causal_model(architecture: str, dtype: torch.dtype = torch.float32, **knobs: Any) -> PreTrainedModel:
    config = getattr(transformers, f"{architecture}Config")(**{**SIZES, **KNOBS.get(architecture, {}), **knobs})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for weight in model.parameters():
                # Biases start at 0, where a forgotten one would not show.
                weight.copy_(weight * 12 if weight.ndim > 1 else weight + 0.3 * torch.randn_like(weight))
    return model.to(dtype).eval()
