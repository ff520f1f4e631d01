"""One pass of the model over prompts.

Shapes: P prompts, W longest prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from harness.rollouts.static_cache import Layers

# Prompt tokens, padding included, in one pass.
PREFILL_TOKENS = 16_384


@dataclass(frozen=True)
class Prefilled:
    """Some of the prompts, from `first` on: their keys and values [p, H, W, D], and the logits [p, V] of what
    follows."""

    first: int
    layers: Layers
    logits: Tensor


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]], pad_token_id: int) -> Iterator[Prefilled]:
    """Prompts padded on the left, as many at a time as PREFILL_TOKENS allow."""
    width = max(len(prompt) for prompt in prompts)
    at_once = max(1, PREFILL_TOKENS // width)
    for first in range(0, len(prompts), at_once):
        part = prompts[first : first + at_once]
        padded = torch.full((len(part), width), pad_token_id)
        mask = torch.zeros_like(padded)
        for row, prompt in enumerate(part):
            padded[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        cache = DynamicCache()
        output = model(
            input_ids=padded.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=(mask.cumsum(1) - 1).clamp_min(0).to(model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        yield Prefilled(first, [(layer.keys, layer.values) for layer in cache.layers], output.logits[:, -1])
