"""The forward passes of decoding: over complete prompts (`prefill`), then over one token per row (`OneTokenPass`).

A `StaticCache` holds keys and values in tensors that are allocated once per batch and written in place. `LayerMasks`
prepares the attention masks, so that the model does not build them for every token. `BatchShapes` determines the
numbers of rows and columns.

Shapes: R rows, H heads, K key-value heads, S columns of the cache, D size of a head, P prompts, W tokens of the longest
prompt, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedModel

from harness.engines.torch.sizes import LEAST_COLUMNS, bucket
from harness.errors import RefusedError

PREFILL_TOKENS = 16_384
"""Maximum number of prompt tokens, including padding, in one prefill pass."""
ONE_TOKEN_ATTENTION = "one_token"
"""The name under which `one_token_attention` is registered with transformers."""

Layers = Sequence[tuple[Tensor, Tensor]]
"""Keys and values [R, H, S, D] of each layer; H and D may differ between layers."""


@dataclass(frozen=True)
class BatchShapes:
    """The shapes that batches may have, and how often the host reads the sampled tokens."""

    bucketed: bool
    """True if sizes are rounded up to a geometric ladder (`bucket`)."""
    look_every_tokens: int
    """Number of tokens after which the host checks which samples have ended."""

    @property
    def shares_prefixes(self) -> bool:
        """True if samples with the same tokens so far share a row. The host must then read every token."""
        return not self.bucketed and self.look_every_tokens == 1

    def rows(self, needed: int) -> int:
        """Return how many rows a batch has if it needs this many."""
        return bucket(needed) if self.bucketed else needed

    def rows_within(self, limit: int) -> int:
        """Return the largest number of rows for which a batch has at most `limit` rows."""
        return next(rows for rows in range(limit, 0, -1) if self.rows(rows) <= limit)

    def columns(self, used: int, most: int) -> int:
        """Return how many columns a cache has if `used` are in use now and at most `most` will be."""
        if self.bucketed:
            return bucket(most, LEAST_COLUMNS)
        # Most completions end before the limit. Running out of columns costs a copy, so their number doubles.
        needed = used + self.look_every_tokens
        return min(most, max(LEAST_COLUMNS, 1 << (needed - 1).bit_length()))

    def read_columns(self, used: int, columns: int) -> int:
        """Return how many of a batch's columns attention reads if `used` are in use."""
        return min(bucket(used, LEAST_COLUMNS), columns) if self.bucketed else used


EAGER = BatchShapes(bucketed=False, look_every_tokens=1)
GRAPHS = BatchShapes(bucketed=True, look_every_tokens=16)


class Arena:
    """Memory that successive caches reuse. Writing to fresh memory is slower than writing to used memory."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._taken = 0

    @property
    def bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def reset(self) -> None:
        """Mark all memory as free."""
        self._taken = 0

    def tensor(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return an uninitialised tensor with the dtype and device of `like`."""
        if self._taken == len(self._blocks):
            self._blocks.append(like.new_empty(0))
        if self._blocks[self._taken].numel() < math.prod(shape):
            self._blocks[self._taken] = like.new_empty(math.prod(shape))
        # Tensors are always taken in the same order, so each block soon has the size that its tensor needs.
        block = self._blocks[self._taken]
        self._taken += 1
        return block[: math.prod(shape)].view(shape)


class StaticCache(Cache):  # type: ignore[misc]  # transformers ships it untyped
    """A key-value cache of R rows and S columns.

    A pass over one token per row writes column `column` and reads the first `read_columns` columns. `column` is an
    int64 tensor [1], so that a recorded pass uses its current value when it is replayed.
    """

    def __init__(self, like: Layers, rows: int, columns: int, column: Tensor, arena: Arena) -> None:
        """Take the tensors of the cache from the arena.

        like: keys and values with the same heads, and any number of rows and columns.
        """
        super().__init__(layers=[])
        self.read_columns = columns
        self.writes_last = False
        """True if a pass always writes the last column that it reads. This is faster than an index in a tensor."""
        self._column = column
        arena.reset()

        def buffer(tensor: Tensor) -> Tensor:
            return arena.tensor(tensor, (rows, tensor.shape[1], columns, tensor.shape[3]))

        self._buffers = [(buffer(keys), buffer(values)) for keys, values in like]

    @property
    def buffers(self) -> Layers:
        return self._buffers

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [r, H, 1, D] of the first r rows, and return all that attention reads.

        Each layer's attention calls this method.
        """
        keys, values = (buffer[: len(key_states)] for buffer in self._buffers[layer_idx])
        if self.writes_last:
            keys[:, :, self.read_columns - 1] = key_states[:, :, 0]
            values[:, :, self.read_columns - 1] = value_states[:, :, 0]
        else:
            keys.index_copy_(2, self._column, key_states)
            values.index_copy_(2, self._column, value_states)
        return keys[:, :, : self.read_columns], values[:, :, : self.read_columns]

    def fill(self, prefilled: Layers, first_row: int, samples: int) -> None:
        """Copy each row of the prefilled keys and values into `samples` adjacent rows, starting at `first_row`.

        The prefilled columns become the first columns of the cache.
        """
        for buffers, given in zip(self._buffers, prefilled, strict=True):
            for buffer, rows in zip(buffers, given, strict=True):
                target = buffer[first_row : first_row + len(rows) * samples, :, : rows.shape[2]]
                by_row = target.view(len(rows), samples, *target.shape[1:])
                by_row.copy_(rows[:, None].expand(-1, samples, -1, -1, -1))

    def take_over(self, other: StaticCache, rows: Tensor, columns: int) -> None:
        """Copy the first `columns` of some rows (int64 indices) of another cache into the first rows of this cache.

        If `other` is this cache, only the rows that move are copied.
        """
        if other is self:
            places = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
            rows = rows[places]
            for buffer in itertools.chain.from_iterable(self._buffers):
                used = buffer[:, :, :columns]
                used.index_copy_(0, places, used.index_select(0, rows))
            return
        for mine, theirs in zip(self._buffers, other._buffers, strict=True):
            for target, source in zip(mine, theirs, strict=True):
                target[: len(rows), :, :columns] = source[:, :, :columns].index_select(0, rows)

    def zero_beyond(self, columns: int) -> None:
        """Set all columns after the first `columns` to 0. Attention masks them, but their values must be finite."""
        for buffers in self._buffers:
            for buffer in buffers:
                buffer[:, :, columns:].zero_()


class LayerMasks:
    """Builds additive attention masks in the form that the model expects, from the visible columns."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Find the kinds of the model's layers.

        Raises RefusedError if a layer has neither full nor sliding-window attention.
        """
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        # A model with several kinds of layers takes a mask for each kind. Other models take a single mask.
        self._one_kind = not hasattr(config, "layer_types")
        if self._one_kind:
            self._windows = {"all": window}
            return
        known = {"full_attention": None, "sliding_attention": window}
        kinds = sorted(set(config.layer_types))
        if unknown := [kind for kind in kinds if kind not in known]:
            raise RefusedError(
                "engines.layer_kind_not_supported", model=type(model).__name__, layers=", ".join(unknown)
            )
        self._windows = {kind: known[kind] for kind in kinds}

    def of(self, visible: Tensor, column: Tensor, numbers: Tensor) -> Tensor | dict[str, Tensor]:
        """Return additive masks [R, 1, 1, S] for queries in column `column` [1].

        visible [R, S]: 0 in the columns of a row's tokens, -inf elsewhere.
        numbers [S]: the column numbers 0, 1, 2, ...
        """
        masks = {
            kind: (visible if window is None else visible.masked_fill(numbers <= column - window, -torch.inf))[
                :, None, None
            ]
            for kind, window in self._windows.items()
        }
        return masks["all"] if self._one_kind else masks


@dataclass(frozen=True)
class Prefilled:
    """The result of one prefill pass over p adjacent prompts."""

    first: int
    """The index of the first of the p prompts."""
    layers: Layers
    """Keys and values [p, H, W, D] of each layer."""
    logits: Tensor
    """[p, V] logits of the token after the prompt."""


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]], pad_token_id: int) -> Iterator[Prefilled]:
    """Run left-padded prompts through the model, at most PREFILL_TOKENS per pass, and yield each pass's result."""
    # All passes are as wide as the longest prompt, so that every prompt ends in the same column.
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


def one_token_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Compute attention for one query token per row with two batched matrix products.

    On a CPU this is faster than torch's fused kernel, which is made for long queries. query [R, H, 1, D], key and value
    [R, K, S, D], additive mask [R, 1, 1, S] -> [R, 1, H, D]. The signature is that of transformers' attention
    functions. Raises RefusedError if there is a softcap or a position bias, which are not supported here.
    """
    if softcap is not None or position_bias is not None:
        raise RefusedError("engines.attention_not_supported", module=type(module).__name__)
    rows, heads, _, size = query.shape
    # Query heads that share a key head become rows of one matrix product, so keys and values are not repeated.
    grouped = (query * scaling).reshape(rows, key.shape[1], heads // key.shape[1], size)
    weights = torch.softmax(torch.matmul(grouped, key.transpose(2, 3)).add_(attention_mask), dim=-1)
    return torch.matmul(weights, value).reshape(rows, 1, heads, value.shape[3]), None


AttentionInterface.register(ONE_TOKEN_ATTENTION, one_token_attention)


@contextmanager
def one_token_at_a_time(model: PreTrainedModel) -> Iterator[None]:
    """Make a CPU model with `sdpa` attention use `one_token_attention` inside this context.

    Inside the context, the model accepts only one token per row.
    """
    config = model.config.get_text_config()
    if model.device.type != "cpu" or config._attn_implementation != "sdpa":
        yield
        return
    config._attn_implementation = ONE_TOKEN_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


Masks = Tensor | dict[str, Tensor]
"""An additive mask [R, 1, 1, S], or if the model has several kinds of layers, one mask for each kind."""


class OneTokenPass:
    """Calls the model's layers directly, skipping the rest of the model's forward pass.

    For a small model on a CPU, the rest takes a fifth of the time. The first call checks that the layers alone give
    bitwise the same result as the complete forward pass. If not, the complete forward pass is used from then on.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._decoder = model.get_decoder()
        self.by_layers: bool | None = None if _has_known_parts(model) else False
        """True if the layers are called directly, False if not, None before the first call has decided."""
        rotary = getattr(self._decoder, "rotary_emb", None)
        self._angles_by_kind = rotary is not None and "layer_type" in signature(rotary.forward).parameters
        self._kinds = getattr(self._decoder.config, "layer_types", None)

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Masks, cache: StaticCache) -> Tensor:
        """Return the logits [R, V] after tokens [R] at positions [R], and write their keys and values to the cache."""
        if self.by_layers is None:
            # Both write the token's keys and values into the cache. The complete model runs last, so its values stay.
            by_layers = self._by_layers(tokens, positions, masks, cache)
            whole = self._whole(tokens, positions, masks, cache)
            self.by_layers = torch.equal(by_layers, whole)
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
