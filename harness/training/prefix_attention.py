"""A decoder pass over rows that share prompts, without padding outside attention.

Every prompt is computed once, however many completions follow it. The tokens of a batch are packed into one sequence:
first the distinct prompts, then each row's completion without its last token, which predicts nothing. Only attention
needs padded blocks [sequences, positions]: one block of all prompts, and blocks of completions of similar length.

transformers' own modules call our attention function, unless the layers are computed in blocks on a CPU
(`harness.models.blocks`). Hidden states and gradients equal those of a padded batch up to rounding. The layout is
computed on the host, because a device would have to synchronise for each length.

Shapes: n rows, P distinct prompts, W tokens of the longest prompt, T tokens of the longest completion, M packed tokens.
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
"""In a block, shortest / longest completion is at least this, which limits padding. A higher value makes more and
smaller blocks, and each block costs a call of the attention kernel.
"""
ATTENDED_TOKENS = 1024
"""Approximate number of keys in one attention call on a CPU, few enough to stay in a core's cache."""
MASK_ALIGNMENT = 16
"""Alignment of mask rows in elements, from `pad_bias` in torch's aten/src/ATen/native/transformers/attention.cpp."""


@dataclass(frozen=True)
class Block:
    """Sequences of similar length, adjacent in the packed batch, that go through attention together."""

    lengths: Tensor
    """[b] int64 number of tokens, all at least 1."""
    width: int
    prompts: Tensor | None
    """[b] int64: which of the P prompts each completion follows; None if the block is the prompts themselves."""


@dataclass(frozen=True)
class PrefixLayout:
    """The layout of a packed batch."""

    tokens: Tensor
    """[M] int64 token ids."""
    positions: Tensor
    """[M] int64: position of each token in its own sequence, from 0."""
    blocks: list[Block]
    """The prompts first, then the completions."""
    padded: Tensor
    """[M] int64: the index of each packed token among the padded positions [b, width] of all blocks."""
    attended: Tensor
    """[A] int64: for each row of each block, the packed positions that it may attend to, [b, W + width], all flattened.
    The prompts' block has [P, W]. Positions in padding are arbitrary.
    """
    predictors: Tensor
    """[n, T] int64: the packed position of the token that predicts each completion token; arbitrary in padding."""

    @classmethod
    def of(
        cls, prompts: Tensor, prompt_lengths: Tensor, prompt_of_row: Tensor, completions: Tensor, lengths: Tensor
    ) -> PrefixLayout:
        """Lay out a batch. Its rows may come in any order. All tensors must be int64 and on the host.

        prompts [P, W] right-padded, prompt_lengths [P] at least 1, prompt_of_row [n].
        completions [n, T] right-padded, lengths [n].
        """
        # The last token of a completion predicts nothing, so it is not fed to the model.
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
        # Token t of a completion is predicted by the packed token before it, and the first token by its prompt's last
        # token.
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
        # Padding may point beyond the end. Any valid position will do, because the masks hide padding.
        every = torch.cat([columns.flatten() for columns in attended]).clamp(max=len(tokens) - 1)
        return cls(tokens, positions, blocks, torch.cat(padded), every, predictors)

    @property
    def prompts(self) -> Block:
        return self.blocks[0]

    def attention_blocks(self, window: int | None, dtype: torch.dtype) -> list[AttentionBlock]:
        """Return the blocks, each split into parts of a few sequences. window: see `attention_mask`."""
        # line: the next packed token; place: the block's first padded position; read: the next entry of `attended`.
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
        """Return an additive mask that broadcasts to [b, heads, width, keys], or None if the block is plainly causal.

        window: number of positions that a token sees, including its own; None: all.
        """
        return (
            self._prompt_mask(window, dtype) if block.prompts is None else self._completion_mask(block, window, dtype)
        )

    def _completion_mask(self, block: Block, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return the mask [b, 1, width, W + width] of completions over their prompt and themselves."""

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
        """Return the mask [1, 1, W, W] of the prompts, or None for plain causal attention.

        All prompts share the mask, because their padding comes after their tokens.
        """
        if window is None or window >= self.prompts.width:
            return None

        def visible() -> Tensor:
            place = torch.arange(self.prompts.width, device=self.tokens.device)
            behind = place[:, None] - place
            return ((behind >= 0) & (behind < window))[None, None]

        return self._mask(self.prompts, window, dtype, visible)

    def _mask(self, block: Block, window: int | None, dtype: torch.dtype, visible: Callable[[], Tensor]) -> Tensor:
        """Return an additive mask: 0 where `visible`, -inf elsewhere. It is cached, because the layers share it.

        From a boolean mask, torch's attention would make an additive mask in each layer, and keep it for the backward
        pass.
        """
        key = (id(block), window, dtype)
        if key not in self._masks:
            seen = visible()
            # CUDA kernels copy the mask in each layer unless its rows start at multiples of MASK_ALIGNMENT.
            columns = -seen.shape[-1] % MASK_ALIGNMENT + seen.shape[-1]
            wide = torch.zeros((*seen.shape[:-1], columns), dtype=dtype, device=seen.device)
            self._masks[key] = wide[..., : seen.shape[-1]].masked_fill_(~seen, -torch.inf)
        return self._masks[key]

    @cached_property
    def _masks(self) -> dict[tuple[int, int | None, torch.dtype], Tensor]:
        return {}


def _similar(lengths: list[int]) -> list[tuple[int, int]]:
    """Split ascending lengths into runs [first, end) in which shortest / longest is at least BLOCK_FILL.

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
    """Return [count, ...] with `rows` [m, ...] at the distinct indices `places` [m], and 0 elsewhere."""
    return _Moved.apply(rows, places, count)  # type: ignore[no-any-return, no-untyped-call]


def collect(rows: Tensor, places: Tensor) -> Tensor:
    """Return the rows [m, ...] at the indices `places` [m].

    The indices must be distinct, so that the backward pass need not sum gradients.
    """
    return _Moved.apply(rows, places, None)  # type: ignore[no-any-return, no-untyped-call]


def _moved(rows: Tensor, places: Tensor, count: int | None) -> Tensor:
    if count is None:
        return rows.index_select(0, places)
    return rows.new_zeros((count, *rows.shape[1:])).index_copy_(0, places, rows)


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    back: int | None


# Each direction is the gradient of the other, so a single function implements both.
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
"""Both tolerances are fractions of the hidden states' norm. They are above the effect of rounding, and below the effect
of a layer that mixes tokens.
"""

Way = Callable[[PreTrainedModel, PrefixLayout], Tensor]

_ways: WeakKeyDictionary[PreTrainedModel, Way | None] = WeakKeyDictionary()
"""Decoder -> the way to compute packed tokens with it, or None if it cannot. Determined once for each decoder."""


def prefix_hidden(decoder: PreTrainedModel, layout: PrefixLayout) -> Tensor:
    """Return the last hidden states [M, D] of the packed tokens, with gradient.

    `shares_prompts` must be true for the decoder.
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
    """Return whether `prefix_hidden` gives correct results for this decoder.

    This requires that the decoder mixes tokens only in attention, and uses torch's SDPA. It is checked once for each
    decoder, by a comparison with the decoder's own forward pass.
    """
    if decoder not in _ways:
        standard = decoder.config._attn_implementation == "sdpa" and decoder._supports_attention_backend
        ways = (_in_blocks, _by_its_layers) if standard else ()
        _ways[decoder] = next((way for way in ways if _agrees(decoder, way)), None)
    return _ways[decoder] is not None


@torch.no_grad()
def _agrees(decoder: PreTrainedModel, way: Way) -> bool:
    """Return whether two completions of a prompt have the same hidden states packed as in separate rows."""
    tokens = torch.arange(8) % decoder.get_input_embeddings().weight.shape[0]
    prompt, completions = tokens[:3], torch.stack([tokens[3:7], tokens[4:8]])
    # A small batch with a shared prompt and padding: completions of 4 and 3 tokens after a prompt of 3 tokens.
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
    # `not >` instead of `<=`, so that NaN passes: a diverged model says nothing about its architecture.
    return not difference.norm() > tolerance * expected.norm()


class _NotHandedDownError(Exception):
    """The decoder did not pass its keyword arguments on to our attention function."""


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
    """Compute attention of packed tokens: query [1, H, M, d], key and value [1, KV, M, d] -> [1, M, H, d].

    Only the layout's mask is used; `attention_mask` is ignored.

    sliding_window: number of positions that a token sees, including its own.
    """
    if prefix_layout is None:
        raise _NotHandedDownError
    # is_causal is set for each block below. If there is a mask, the mask is already causal.
    options.pop("is_causal", None)
    layout = prefix_layout
    queries, keys, values = (tensor[0].transpose(0, 1).flatten(1) for tensor in (query, key, value))
    rows = [len(block.lengths) for block in layout.blocks]
    widths = [block.width for block in layout.blocks]
    columns = [block.width + (0 if block.prompts is None else layout.prompts.width) for block in layout.blocks]

    def by_block(tensor: Tensor, widths: list[int]) -> list[Tensor]:
        """Split a tensor into one tensor [b, heads, width, d] per block."""
        parts = torch.split(tensor, [count * width for count, width in zip(rows, widths, strict=True)])
        shapes = [(count, width, -1, query.shape[-1]) for count, width in zip(rows, widths, strict=True)]
        return [part.view(shape).transpose(1, 2) for part, shape in zip(parts, shapes, strict=True)]

    # All blocks are gathered at once, because the gradient of each slice of a tensor is as large as the tensor. The
    # backward pass of `embedding` sums the gradients of rows that attend to the same prompt in a fixed order.
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
    """Make forward passes in this context use the attention function registered as `name`, or by default their own.

    The backward pass, which may come after the context, recomputes layers that are marked for activation checkpointing.
    The recomputation uses the same attention function. transformers itself checkpoints only in training mode, which
    also turns dropout on.
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
        # Set only on the layer, not on its children. This makes the layer call the function above.
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
    # Return to evaluation mode before the layer computes, because some layers apply dropout themselves.
    layer.training = False
    # The second context is for the recomputation, when the decoder's own setting may already be restored.
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
