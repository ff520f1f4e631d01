"""Attention of one token a row on a CPU: two batched matrix products, faster there than torch's fused kernel, which is
made for long queries.

Shapes: R rows, H heads, K key-value heads, S columns, D size of a head.

A model's pass over one token of each row.

Shapes: R rows, S columns of the cache, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from harness.engines.torch.cache import StaticCache

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


Masks = Tensor | dict[str, Tensor]
"""Additive [R, 1, 1, S]; where a model's layers differ, one for each kind of layer."""


class OneTokenPass:
    """Calls the model's own layers one after another, without what surrounds them in its forward pass, which takes a
    fifth of the time for a small model on a CPU.

    Whether that is all that the model does is found out at the first call, where it must give the same bits; a model
    that does more is called as a whole.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._decoder = model.get_decoder()
        self.by_layers: bool | None = None if _has_known_parts(model) else False
        """Whether the layers are called one after another; None until it is found out."""
        rotary = getattr(self._decoder, "rotary_emb", None)
        self._angles_by_kind = rotary is not None and "layer_type" in signature(rotary.forward).parameters
        self._kinds = getattr(self._decoder.config, "layer_types", None)

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Masks, cache: StaticCache) -> Tensor:
        """Logits [R, V] of what follows tokens [R] at positions [R], whose keys and values the cache then has."""
        if self.by_layers is None:
            whole = self._whole(tokens, positions, masks, cache)
            self.by_layers = torch.equal(self._by_layers(tokens, positions, masks, cache), whole)
            return whole
        compute = self._by_layers if self.by_layers else self._whole
        return compute(tokens, positions, masks, cache)

    def _whole(self, tokens: Tensor, positions: Tensor, masks: Masks, cache: StaticCache) -> Tensor:
        logits: Tensor = self._model(
            input_ids=tokens[:, None],
            attention_mask=masks,
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
        return logits

    def _by_layers(self, tokens: Tensor, positions: Tensor, masks: Masks, cache: StaticCache) -> Tensor:
        decoder, positions = self._decoder, positions[:, None]
        hidden = decoder.embed_tokens(tokens[:, None])
        if isinstance(masks, Tensor):
            masks = {"all": masks}
        if self._angles_by_kind:
            angles = {kind: decoder.rotary_emb(hidden, positions, kind) for kind in masks}
        else:
            angles = dict.fromkeys(masks, decoder.rotary_emb(hidden, positions))
        kinds = self._kinds or ["all"] * len(decoder.layers)
        for layer, kind in zip(decoder.layers, kinds, strict=True):
            hidden = layer(
                hidden,
                attention_mask=masks[kind],
                position_embeddings=angles[kind],
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
        logits: Tensor = self._model.get_output_embeddings()(decoder.norm(hidden))
        return logits[:, -1]


def _has_known_parts(model: PreTrainedModel) -> bool:
    decoder = model.get_decoder()
    return (
        all(hasattr(decoder, part) for part in ("embed_tokens", "rotary_emb", "layers", "norm"))
        and model.get_output_embeddings() is not None
        and {"attention_mask", "position_embeddings", "past_key_values"}
        <= signature(decoder.layers[0].forward).parameters.keys()
    )
