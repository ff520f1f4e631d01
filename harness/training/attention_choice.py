"""Which attention function a decoder's layers call, also where a backward pass computes them again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@contextlib.contextmanager
def attending_by(decoder: PreTrainedModel, name: str | None = None) -> Iterator[None]:
    """Forward passes in this context use the attention function registered under the name; None: the decoder's own.

    Layers of which activation checkpointing is asked are computed again in the backward pass, which may come later, and
    there they use the same function. transformers itself checkpoints in training mode only, where dropout acts too.
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
