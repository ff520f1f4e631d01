"""One pass of a decoder over a batch in line (`harness.training.prefix_layout`), each prompt once.

Attention is a function of ours, called by transformers' own modules. Hidden states and gradients are those of a padded
batch, up to rounding.

Shapes: M tokens in line, H heads, d size of a head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.training.prefix_layout import PrefixLayout, on_device

ATTENTION = "shared_prefix"
PROBE_TOLERANCE = 1e-3
PROBE_TOLERANCE_LOW_PRECISION = 0.1
"""As a share of the hidden states' norm: more than rounding changes them, less than a layer that mixes tokens does."""

_shares: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def prefix_hidden(decoder: PreTrainedModel, layout: PrefixLayout) -> Tensor:
    """[M, D] the last hidden states of the tokens in line, with their gradient. The decoder must share prompts."""
    with attending_by(decoder, ATTENTION):
        hidden: Tensor = decoder(
            input_ids=layout.tokens[None], position_ids=layout.positions[None], use_cache=False, prefix_layout=layout
        ).last_hidden_state
    return hidden[0]


def shares_prompts(decoder: PreTrainedModel) -> bool:
    """Whether `prefix_hidden` is right for this decoder: its tokens may mix only in attention, and that by torch's
    SDPA.

    It is found out once for each decoder, by a comparison with its own forward pass.
    """
    if decoder not in _shares:
        standard = decoder.config._attn_implementation == "sdpa" and decoder._supports_attention_backend
        _shares[decoder] = standard and _agrees(decoder)
    return _shares[decoder]


@torch.no_grad()
def _agrees(decoder: PreTrainedModel) -> bool:
    """Whether two completions of one prompt have the hidden states in line that they have apart."""
    tokens = torch.arange(8) % decoder.get_input_embeddings().weight.shape[0]
    prompt, completions = tokens[:3], torch.stack([tokens[3:7], tokens[4:8]])
    layout = PrefixLayout.of(prompt[None], torch.tensor([3]), torch.tensor([0, 0]), completions, torch.tensor([4, 3]))
    rows = torch.cat([prompt.expand(2, -1), completions], 1)
    layout, rows = on_device((layout, rows), decoder.device)
    apart = decoder(input_ids=rows, use_cache=False).last_hidden_state
    try:
        in_line = prefix_hidden(decoder, layout)[layout.predictors]
    except _NotHandedDownError:
        return False
    low_precision = torch.finfo(in_line.dtype).bits < 32
    tolerance = PROBE_TOLERANCE_LOW_PRECISION if low_precision else PROBE_TOLERANCE
    expected = apart[:, 2:6].cpu()
    difference = in_line.cpu() - expected
    difference[1, 3] = expected[1, 3] = 0.0  # padding
    return not difference.norm() > tolerance * expected.norm()  # NaN, a diverged model, is another matter


class _NotHandedDownError(Exception):
    """A decoder whose attention is not given what its forward pass is given."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix_layout: PrefixLayout | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query [1, H, M, d], key and value [1, KV, M, d] in line; returns [1, M, H, d]. There is no mask but the layout's.

    sliding_window: positions that a token sees, itself included.
    """
    if prefix_layout is None:
        raise _NotHandedDownError
    layout, prompts = prefix_layout, prefix_layout.prompts
    options.pop("is_causal", None)  # every token of a causal model comes after what it attends to
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """[b, positions, H, d] of tensors [b, positions, heads, d]."""
        heads_first = (tensor.transpose(1, 2) for tensor in (query, key, value))
        attended: Tensor = sdpa_attention_forward(module, *heads_first, mask, is_causal=mask is None, **options)[0]
        return attended

    prompt_keys, prompt_values = prompts.padded(keys), prompts.padded(values)
    mask = layout.prompt_mask(sliding_window, query.dtype)
    attended = attend(prompts.padded(queries), prompt_keys, prompt_values, mask)
    outputs = [prompts.in_line(attended)]
    for block in layout.completions:
        attended = attend(
            block.padded(queries),
            torch.cat([prompt_keys[block.prompts], block.padded(keys)], 1),
            torch.cat([prompt_values[block.prompts], block.padded(values)], 1),
            layout.attention_mask(block, sliding_window, query.dtype),
        )
        outputs.append(block.in_line(attended))
    return torch.cat(outputs)[None], None


AttentionInterface.register(ATTENTION, _attention)


@contextlib.contextmanager
def attending_by(decoder: PreTrainedModel, name: str | None = None) -> Iterator[None]:
    """Forward passes in this context use the attention function registered under the name; None: the decoder's own.

    Layers marked for activation checkpointing are computed again in the backward pass, which may come later; there they
    use the same function. transformers itself checkpoints only in training mode, where dropout acts too.
    """
    name = name or decoder.config._attn_implementation
    layers = [
        module
        for module in decoder.modules()
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing and torch.is_grad_enabled()
    ]
    saved = [(layer.training, layer._gradient_checkpointing_func) for layer in layers]
    for layer in layers:
        layer._gradient_checkpointing_func = partial(_checkpointed, layer, partial(_implementation, decoder, name))
        layer.training = True  # of the layer alone, which then calls the function above
    try:
        with _implementation(decoder, name):
            yield
    finally:
        for layer, (training, function) in zip(layers, saved, strict=True):
            layer.training, layer._gradient_checkpointing_func = training, function


def _checkpointed(
    layer: nn.Module,
    implementation: Callable[[], contextlib.AbstractContextManager[None]],
    forward: Callable[..., Tensor],
    *args: Any,
) -> Tensor:
    layer.training = False  # some layers apply dropout of their own
    outputs: Tensor = checkpoint(
        forward, *args, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), implementation())
    )
    return outputs


@contextlib.contextmanager
def _implementation(decoder: PreTrainedModel, name: str) -> Iterator[None]:
    config = decoder.config
    previous = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = previous
