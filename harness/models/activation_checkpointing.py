"""Activation checkpointing: a decoder layer's activations are computed again in the backward pass instead of kept."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch.utils.checkpoint import checkpoint

from harness.errors import RefusedError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def set_activation_checkpointing(model: PreTrainedModel, on: bool) -> None:
    """Mark the model's layers, in place. RefusedError for an architecture whose layers transformers does not do it for.

    transformers heeds the mark in training mode only, where dropout acts too, and the mode here is evaluation: it is
    heeded in training passes, by `harness.training.attention_choice`. Sampling from the same layers is left alone.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if on and not layers:
        raise RefusedError(
            f"train.activation_checkpointing: transformers does not do it for {type(model).__name__}. Use --set "
            "train.activation_checkpointing=false and a smaller train.micro_batch_tokens."
        )
    for layer in layers:
        layer.gradient_checkpointing = on
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
