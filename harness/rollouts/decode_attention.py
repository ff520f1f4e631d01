"""Attention of one token a row on a CPU: two batched matrix products, faster there than torch's fused kernel, which is
made for long queries.

Shapes: R rows, H heads, K key-value heads, S columns, D size of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

NAME = "one_token"


def one_token_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [R, H, 1, D], key and value [R, K, S, D], additive mask [R, 1, 1, S] -> [R, 1, H, D]. The signature is that
    of transformers' attention functions; what its own `sdpa` refuses or adds is refused here."""
    if softcap is not None or position_bias is not None:
        raise NotImplementedError(f"{type(module).__name__}: attention with a softcap or a position bias")
    rows, heads, _, size = query.shape
    grouped = (query * scaling).reshape(rows, key.shape[1], heads // key.shape[1], size)
    weights = torch.softmax(torch.matmul(grouped, key.transpose(2, 3)).add_(attention_mask), dim=-1)
    return torch.matmul(weights, value).reshape(rows, 1, heads, value.shape[3]), None


AttentionInterface.register(NAME, one_token_attention)


@contextmanager
def one_token_at_a_time(model: PreTrainedModel) -> Iterator[None]:
    """While it lasts, a model on a CPU that attends by `sdpa` attends by this, and takes one token a row only."""
    config = model.config.get_text_config()
    if model.device.type != "cpu" or config._attn_implementation != "sdpa":
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"
