"""One pass of a decoder over rows that share prompts, without padding outside attention.

Every prompt is computed once, however many completions follow it. The tokens of a batch are packed into one line: first
the distinct prompts, then each row's completion without its last token, which predicts nothing. Only attention needs
padded blocks [sequences, positions]: one of all prompts, and others of completions of similar length.

transformers' own modules call our attention function, unless the layers are computed in blocks on a CPU
(`harness.models.blocks`). Hidden states and gradients equal those of a padded batch, up to rounding. The layout is
computed on the host, because a device would have to synchronise for each length.

Shapes: n rows, P distinct prompts, W longest prompt, T longest completion, M tokens in line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from operator import mul
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.models.blocks import AttentionBlock, angles, attend_in_blocks, blocked_layers, window_of
from harness.training.tensors import on_device

BLOCK_FILL = 0.5
"""The shortest completion of a block is at least this share as long as its longest, which limits padding. A higher
share makes more and smaller blocks, and each costs a call of the attention kernel.
"""
ATTENDED_TOKENS = 1024
"""Number of keys that pass through attention together on a CPU, few enough to stay in a core's cache."""
MASK_ALIGNMENT = 16
"""In elements; torch's `pad_bias` in aten/src/ATen/native/transformers/attention.cpp."""


@dataclass(frozen=True)
class Block:
    """Sequences of similar length, adjacent in line, that pass through attention together."""

    lengths: Tensor
    """[b] int64, all at least 1."""
    width: int
    prompts: Tensor | None
    """[b] int64: which of the P prompts each completion follows; None if these are the prompts."""


@dataclass(frozen=True)
class PrefixLayout:
    """The layout of a batch in line."""

    tokens: Tensor
    """[M] int64 token ids."""
    positions: Tensor
    """[M] int64: position of each token in its own sequence, from 0."""
    blocks: list[Block]
    """The prompts first, then the completions."""
    padded: Tensor
    """[M] int64: the index of each token in line among the padded positions [b, width] of all blocks."""
    attended: Tensor
    """[A] int64: for each row of each block, the positions in line that it may attend to, [b, W + width]. The prompts'
    own block has [P, W]. Padding holds arbitrary positions.
    """
    predictors: Tensor
    """[n, T] int64: the position in line of the token that predicts each completion token; arbitrary in padding."""

    @classmethod
    def of(
        cls, prompts: Tensor, prompt_lengths: Tensor, prompt_of_row: Tensor, completions: Tensor, lengths: Tensor
    ) -> PrefixLayout:
        """Lay out a batch, whose rows may come in any order.

        prompts [P, W] right-padded, prompt_lengths [P] (none 0), prompt_of_row [n], completions [n, T] right-padded,
        lengths [n]; all int64 and on the host.
        """
        # The last token of a completion predicts nothing, so it is not fed.
        fed = (lengths - 1).clamp_min(0)
        # Sorted by length, so that completions of similar length are adjacent and form blocks.
        order = fed.argsort(stable=True)
        fed, prompt_of_row, completions = fed[order], prompt_of_row[order], completions[order]
        prompt_places = torch.arange(prompts.shape[1])
        places = torch.arange(completions.shape[1])
        in_prompt, is_fed = prompt_places < prompt_lengths[:, None], places < fed[:, None]
        after_prompt = prompt_lengths[prompt_of_row, None] + places
        tokens = torch.cat([prompts[in_prompt], completions[is_fed]])
        positions = torch.cat([prompt_places.expand_as(prompts)[in_prompt], after_prompt[is_fed]])

        prompt_tokens = int(prompt_lengths.sum())
        start_of_row = prompt_tokens + fed.cumsum(0) - fed
        # Token t of a completion is predicted by token t - 1 in line, and its first token by the last one of its
        # prompt.
        predictors = torch.empty_like(completions)
        predictors[order] = (start_of_row[:, None] + places - 1).clamp(max=len(tokens) - 1)
        predictors[order, :1] = (prompt_lengths.cumsum(0) - 1)[prompt_of_row, None]

        prompt_starts = prompt_lengths.cumsum(0) - prompt_lengths
        prompt_columns = prompt_starts[:, None] + prompt_places
        blocks, attended = [Block(prompt_lengths, prompts.shape[1], None)], [prompt_columns]
        for first, end in _similar(fed.tolist()):
            block = Block(fed[first:end], int(fed[end - 1]), prompt_of_row[first:end])
            own = start_of_row[first:end, None] + places[: block.width]
            blocks.append(block)
            attended.append(torch.cat([prompt_columns[block.prompts], own], 1))
        padded, before = [], 0
        for block in blocks:
            padded.append(before + (torch.arange(block.width) < block.lengths[:, None]).flatten().nonzero()[:, 0])
            before += len(block.lengths) * block.width
        # Padding may point beyond the line; any valid position serves there, since the masks hide it.
        every = torch.cat([columns.flatten() for columns in attended]).clamp(max=len(tokens) - 1)
        return cls(tokens, positions, blocks, torch.cat(padded), every, predictors)

    @property
    def prompts(self) -> Block:
        return self.blocks[0]

    def attention_blocks(self, window: int | None, dtype: torch.dtype) -> list[AttentionBlock]:
        """Return the blocks, each split into parts of a few sequences; window as in `attention_mask`."""
        # line: the next token in line; place: the block's first padded position; read: the next entry of `attended`.
        found, line, place, read = [], 0, 0, 0
        for block in self.blocks:
            mask = self.attention_mask(block, window, dtype)
            columns = block.width + (0 if block.prompts is None else self.prompts.width)
            some = max(1, ATTENDED_TOKENS // columns)
            for first in range(0, len(block.lengths), some):
                lengths = block.lengths[first : first + some]
                rows, count = slice(line, line + int(lengths.sum())), len(lengths)
                attended = self.attended[read : read + count * columns].view(count, columns)
                own = mask if mask is None or len(mask) == 1 else mask[first : first + some]
                found.append(AttentionBlock(rows, self.padded[rows] - place, block.width, attended, own))
                line, place, read = rows.stop, place + count * block.width, read + count * columns
        return found

    def attention_mask(self, block: Block, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return an additive mask, broadcast to [b, heads, width, keys].

        Returns None if a token sees all before it in its block.

        window: how many positions back a token sees, itself included; None for all.
        """
        return (
            self._prompt_mask(window, dtype) if block.prompts is None else self._completion_mask(block, window, dtype)
        )

    def _completion_mask(self, block: Block, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return the mask [b, 1, width, W + width] over a completion's prompt and the completion itself."""

        def visible() -> Tensor:
            prompt_length = self.prompts.lengths[block.prompts, None, None]
            prompt_place = torch.arange(self.prompts.width, device=self.tokens.device)
            place = torch.arange(block.width, device=self.tokens.device)
            behind = place[:, None] - place
            in_prompt, in_completion = prompt_place < prompt_length, behind >= 0
            if window is not None:
                in_prompt = in_prompt & (prompt_length + place[:, None] - prompt_place < window)
                in_completion = in_completion & (behind < window)
            shape = (len(block.lengths), block.width, -1)
            return torch.cat([in_prompt.expand(shape), in_completion.expand(shape)], 2)[:, None]

        return self._mask(block, window, dtype, visible)

    def _prompt_mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return the mask [1, 1, W, W], or None for plain causal attention.

        One mask serves all prompts, because their padding comes after their tokens.
        """
        if window is None or window >= self.prompts.width:
            return None

        def visible() -> Tensor:
            place = torch.arange(self.prompts.width, device=self.tokens.device)
            behind = place[:, None] - place
            return ((behind >= 0) & (behind < window))[None, None]

        return self._mask(self.prompts, window, dtype, visible)

    def _mask(self, block: Block, window: int | None, dtype: torch.dtype, visible: Callable[[], Tensor]) -> Tensor:
        """Return 0 where `visible`, -inf elsewhere, computed once and kept, since the layers share it.

        From a boolean mask, torch's attention makes an additive one in each layer, and keeps it for the backward pass.
        """
        key = (id(block), window, dtype)
        if key not in self._masks:
            seen = visible()
            # CUDA's kernels copy a mask in each layer unless its rows start at multiples of MASK_ALIGNMENT.
            columns = -seen.shape[-1] % MASK_ALIGNMENT + seen.shape[-1]
            wide = torch.zeros((*seen.shape[:-1], columns), dtype=dtype, device=seen.device)
            self._masks[key] = wide[..., : seen.shape[-1]].masked_fill_(~seen, -torch.inf)
        return self._masks[key]

    @cached_property
    def _masks(self) -> dict[tuple[int, int | None, torch.dtype], Tensor]:
        return {}


def _similar(lengths: list[int]) -> list[tuple[int, int]]:
    """Split ascending lengths into runs [first, end), each at most 1 / BLOCK_FILL times as long as its first.

    Lengths of 0 are left out.
    """
    runs: list[tuple[int, int]] = []
    for index, length in enumerate(lengths):
        if runs and lengths[runs[-1][0]] >= BLOCK_FILL * length:
            runs[-1] = (runs[-1][0], index + 1)
        elif length > 0:
            runs.append((index, index + 1))
    return runs


def spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Return [count, ...] with rows [m, ...] at these indices, all distinct, and 0 elsewhere."""
    return _Moved.apply(rows, places, count)  # type: ignore[no-any-return, no-untyped-call]


def collect(rows: Tensor, places: Tensor) -> Tensor:
    """Return the rows [m, ...] at these indices.

    The indices are distinct, so the backward pass need not add anything up.
    """
    return _Moved.apply(rows, places, None)  # type: ignore[no-any-return, no-untyped-call]


def _moved(rows: Tensor, places: Tensor, count: int | None) -> Tensor:
    if count is None:
        return rows.index_select(0, places)
    return rows.new_zeros((count, *rows.shape[1:])).index_copy_(0, places, rows)


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    back: int | None


# Each of the two directions is the other's gradient, so one function serves both.
class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, rows: Tensor, places: Tensor, count: int | None) -> Tensor:
        ctx.save_for_backward(places)
        ctx.back = len(rows) if count is None else None
        return _moved(rows, places, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _moved(gradient, ctx.saved_tensors[0], ctx.back), None, None


ATTENTION = "shared_prefix"
PROBE_TOLERANCE = 1e-3
PROBE_TOLERANCE_LOW_PRECISION = 0.1
"""Both tolerances are shares of the hidden states' norm: above the effect of rounding, below that of a layer that mixes
tokens.
"""

Way = Callable[[PreTrainedModel, PrefixLayout], Tensor]

_ways: WeakKeyDictionary[PreTrainedModel, Way | None] = WeakKeyDictionary()
"""How each decoder is passed through; None if it cannot take tokens in line. Found out once for each decoder."""


def prefix_hidden(decoder: PreTrainedModel, layout: PrefixLayout) -> Tensor:
    """Return the last hidden states [M, D] of the tokens in line, with their gradient.

    The decoder must share prompts; see `shares_prompts`.
    """
    return (_ways.get(decoder) or _by_its_layers)(decoder, layout)


def _by_its_layers(decoder: PreTrainedModel, layout: PrefixLayout) -> Tensor:
    with attending_by(decoder, ATTENTION):
        hidden: Tensor = decoder(
            input_ids=layout.tokens[None], position_ids=layout.positions[None], use_cache=False, prefix_layout=layout
        ).last_hidden_state
    return hidden[0]


def _in_blocks(decoder: PreTrainedModel, layout: PrefixLayout) -> Tensor:
    if (layers := blocked_layers(decoder)) is None:
        return _by_its_layers(decoder, layout)
    hidden: Tensor = decoder.embed_tokens(layout.tokens)
    cos, sin = angles(decoder, hidden, layout.positions)
    blocks = cache(lambda window: layout.attention_blocks(window, hidden.dtype))

    def attend(module: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return attend_in_blocks(queries, keys, values, blocks(window_of(module)), module.scaling)

    for layer in layers:
        hidden = layer(hidden, cos, sin, attend)
    hidden = decoder.norm(hidden)
    return hidden


def shares_prompts(decoder: PreTrainedModel) -> bool:
    """Return whether `prefix_hidden` is right for this decoder.

    Its tokens may mix only in attention, and that by torch's SDPA. The answer is found once for each decoder, by a
    comparison with its own forward pass.
    """
    if decoder not in _ways:
        standard = decoder.config._attn_implementation == "sdpa" and decoder._supports_attention_backend
        ways = (_in_blocks, _by_its_layers) if standard else ()
        _ways[decoder] = next((way for way in ways if _agrees(decoder, way)), None)
    return _ways[decoder] is not None


@torch.no_grad()
def _agrees(decoder: PreTrainedModel, way: Way) -> bool:
    """Return whether two completions of one prompt have the same hidden states in line as apart."""
    tokens = torch.arange(8) % decoder.get_input_embeddings().weight.shape[0]
    prompt, completions = tokens[:3], torch.stack([tokens[3:7], tokens[4:8]])
    # A small batch with a shared prompt and padding: completions of 4 and 3 tokens after one prompt of 3.
    layout = PrefixLayout.of(prompt[None], torch.tensor([3]), torch.tensor([0, 0]), completions, torch.tensor([4, 3]))
    rows = torch.cat([prompt.expand(2, -1), completions], 1)
    layout, rows = on_device((layout, rows), decoder.device)
    apart = decoder(input_ids=rows, use_cache=False).last_hidden_state
    try:
        in_line = way(decoder, layout)[layout.predictors]
    except _NotHandedDownError:
        return False
    low_precision = torch.finfo(in_line.dtype).bits < 32
    tolerance = PROBE_TOLERANCE_LOW_PRECISION if low_precision else PROBE_TOLERANCE
    expected = apart[:, 2:6].cpu()
    difference = in_line.cpu() - expected
    difference[1, 3] = expected[1, 3] = 0.0  # padding
    # Written so that NaN passes: a diverged model is not a matter of its architecture.
    return not difference.norm() > tolerance * expected.norm()


class _NotHandedDownError(Exception):
    """Raised by our attention function if the decoder does not hand its arguments down to it."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix_layout: PrefixLayout | None = None,
    sliding_window: int | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Attend in line: query [1, H, M, d], key and value [1, KV, M, d] -> [1, M, H, d].

    The only mask is the layout's. sliding_window: positions that a token sees, itself included.
    """
    if prefix_layout is None:
        raise _NotHandedDownError
    # Decided for each block below: without a mask it is True, and a mask is causal already.
    options.pop("is_causal", None)
    layout = prefix_layout
    queries, keys, values = (tensor[0].transpose(0, 1).flatten(1) for tensor in (query, key, value))
    rows = [len(block.lengths) for block in layout.blocks]
    widths = [block.width for block in layout.blocks]
    columns = [block.width + (0 if block.prompts is None else layout.prompts.width) for block in layout.blocks]

    def by_block(tensor: Tensor, widths: list[int]) -> list[Tensor]:
        """Split a tensor into [b, heads, width, d] for each block."""
        parts = torch.split(tensor, [count * width for count, width in zip(rows, widths, strict=True)])
        shapes = [(count, width, -1, query.shape[-1]) for count, width in zip(rows, widths, strict=True)]
        return [part.view(shape).transpose(1, 2) for part, shape in zip(parts, shapes, strict=True)]

    # All blocks are gathered at once, since the gradient of each slice of a tensor is as large as the tensor.
    # Embeddings gather, since their backward pass adds up in a fixed order, and several rows attend to one prompt.
    spaced = spread(queries, layout.padded, sum(map(mul, rows, widths)))
    parts = zip(
        layout.blocks,
        by_block(spaced, widths),
        by_block(functional.embedding(layout.attended, keys), columns),
        by_block(functional.embedding(layout.attended, values), columns),
        strict=True,
    )
    outputs = []
    for block, *tensors in parts:
        mask = layout.attention_mask(block, sliding_window, query.dtype)
        attended = sdpa_attention_forward(module, *tensors, mask, is_causal=mask is None, **options)[0]
        outputs.append(attended.flatten(0, 1))
    return collect(torch.cat(outputs), layout.padded)[None], None


AttentionInterface.register(ATTENTION, _attention)


@contextlib.contextmanager
def attending_by(decoder: PreTrainedModel, name: str | None = None) -> Iterator[None]:
    """Let forward passes in this context use the attention function registered as `name`; None for the decoder's own.

    Layers marked for activation checkpointing are recomputed in the backward pass, which may come after the context.
    They use the same function there. transformers itself checkpoints only in training mode, where dropout acts too.
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
        # Set on the layer alone, not on its children: it makes the layer call the function above.
        layer.training = True
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
    *args: object,
) -> Tensor:
    # Back to evaluation mode before the layer computes: some layers apply dropout of their own.
    layer.training = False
    # The second context is entered for the recomputation, when the decoder's own setting may be back in force.
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
