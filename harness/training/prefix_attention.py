"""One pass of a decoder over rows that share prompts, by an attention function of ours in transformers' own modules.

Every prompt is computed once, however many completions follow it, and no padding but in attention itself; see
`harness.training.prefix_layout`. Hidden states and gradients are those of a padded batch, up to rounding.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from harness.training.attention_choice import attending_by
from harness.training.prefix_layout import PrefixLayout

ATTENTION = "shared_prefix"
PROBE_TOLERANCE = 1e-3
PROBE_TOLERANCE_LOW_PRECISION = 0.1
"""Of the norm of the hidden states: above what rounding does to them, below what a layer does that mixes tokens."""

_shares: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def prefix_hidden(decoder: PreTrainedModel, layout: PrefixLayout) -> Tensor:
    """[M, D] the last hidden states of the tokens in line, with their gradient. The decoder must share prompts."""
    with attending_by(decoder, ATTENTION):
        hidden: Tensor = decoder(
            input_ids=layout.tokens[None], position_ids=layout.positions[None], use_cache=False, prefix_layout=layout
        ).last_hidden_state
    return hidden[0]


def shares_prompts(decoder: PreTrainedModel) -> bool:
    """Whether `prefix_hidden` is right for this decoder: its tokens must not mix but in attention by torch's SDPA.

    Found out once a decoder, by a comparison with its own way.
    """
    if decoder not in _shares:
        standard = decoder.config._attn_implementation == "sdpa" and decoder._supports_attention_backend
        _shares[decoder] = standard and _agrees(decoder)
    return _shares[decoder]


@torch.no_grad()
def _agrees(decoder: PreTrainedModel) -> bool:
    """Whether two completions of one prompt have the hidden states in line that they have apart."""
    tokens = torch.arange(8, device=decoder.device) % decoder.get_input_embeddings().weight.shape[0]
    prompt, completions = tokens[:3], torch.stack([tokens[3:7], tokens[4:8]])
    layout = PrefixLayout.of(
        prompt[None], tokens.new_tensor([3]), tokens.new_tensor([0, 0]), completions, tokens.new_tensor([4, 3])
    )
    apart = decoder(input_ids=torch.cat([prompt.expand(2, -1), completions], 1), use_cache=False).last_hidden_state
    try:
        in_line = prefix_hidden(decoder, layout)[layout.predictors]
    except _NotHandedDownError:
        return False
    low_precision = torch.finfo(in_line.dtype).bits < 32
    tolerance = PROBE_TOLERANCE_LOW_PRECISION if low_precision else PROBE_TOLERANCE
    wanted = torch.ones_like(completions, dtype=torch.bool)
    wanted[1, 3] = False
    difference = (in_line - apart[:, 2:6])[wanted].norm()
    return not difference > tolerance * apart[:, 2:6][wanted].norm()  # NaN, a diverged model, is another matter


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
    attended = attend(prompts.padded(queries), prompt_keys, prompt_values, layout.prompt_mask(sliding_window))
    outputs = [prompts.in_line(attended)]
    for block in layout.completions:
        attended = attend(
            block.padded(queries),
            torch.cat([prompt_keys[block.prompts], block.padded(keys)], 1),
            torch.cat([prompt_values[block.prompts], block.padded(values)], 1),
            layout.attention_mask(block, sliding_window),
        )
        outputs.append(block.in_line(attended))
    return torch.cat(outputs)[None], None


AttentionInterface.register(ATTENTION, _attention)
