"""The tiny model with attention heads that vLLM has kernels for on a CPU: the same function, of another shape."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from harness.models.language_model import LanguageModel

WIDE = 32
"""The smallest head that vLLM 0.32 has a CPU kernel for; those of the tiny model are 24 wide."""


def with_wide_heads(language_model: LanguageModel) -> LanguageModel:
    """Zeros fill the heads up. The scale of attention is made good in the queries, and that of the angles, which are
    theta ** (-2i / width), in theta; an angle turns dimensions i and i + width / 2, so each half is filled up alone."""
    narrow = language_model.model
    config = copy.deepcopy(narrow.config)
    width, config.head_dim = config.head_dim, WIDE
    config.rope_parameters["rope_theta"] **= WIDE / width
    wide = type(narrow)(config)
    heads = config.num_attention_heads
    assert config.num_key_value_heads == heads

    def rows(weight: Tensor) -> Tensor:
        """[heads * width, D] -> [heads * WIDE, D]."""
        halves = weight.view(heads, 2, width // 2, -1)
        filled = torch.zeros(heads, 2, WIDE // 2, weight.shape[1])
        filled[:, :, : width // 2] = halves
        return filled.reshape(heads * WIDE, -1)

    weights = narrow.state_dict()
    for name, weight in weights.items():
        match name.split(".")[-2]:
            case "q_proj":
                weights[name] = rows(weight) * math.sqrt(WIDE / width)
            case "k_proj" | "v_proj":
                weights[name] = rows(weight)
            case "o_proj":
                weights[name] = rows(weight.T).T.contiguous()
    wide.load_state_dict(weights)
    wide.generation_config = narrow.generation_config
    return replace(language_model, model=wide.eval())
