"""The model's passes in decoding: over whole prompts (`prefill`), then over one token of each row (`OneTokenPass`).

Keys and values are held by a `StaticCache`, whose tensors are allocated once for a batch and written in place.
`LayerMasks` prepares the masks, so that the model makes none for every token. `BatchShapes` determines the numbers of
rows and columns.

Shapes: R rows, H heads, K key-value heads, S columns of the cache, D size of a head. P prompts, W longest prompt, V
vocabulary.
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
"""Prompt tokens, padding included, in one pass."""
ONE_TOKEN_ATTENTION = "one_token"
"""The name under which transformers finds `one_token_attention`."""

Layers = Sequence[tuple[Tensor, Tensor]]
"""Keys and values [R, H, S, D] of each layer; H and D may differ between layers."""


@dataclass(frozen=True)
class BatchShapes:
    """The shapes that batches may have, and how often the host looks at the sampled tokens."""

    bucketed: bool
    """True if sizes are those of a geometric ladder, not exact."""
    look_every_tokens: int
    """After so many tokens the host learns which samples have ended."""

    @property
    def shares_prefixes(self) -> bool:
        """True if samples with the same tokens so far share a row: the host must look at every token to part them."""
        return not self.bucketed and self.look_every_tokens == 1

    def rows(self, needed: int) -> int:
        """Return the rows of a batch that needs so many."""
        return bucket(needed) if self.bucketed else needed

    def rows_within(self, limit: int) -> int:
        """Return the most rows of a batch that has no more than so many."""
        return next(rows for rows in range(limit, 0, -1) if self.rows(rows) <= limit)

    def columns(self, used: int, most: int) -> int:
        """Return the columns of a batch's cache with so many in use, of which there will be `most`."""
        if self.bucketed:
            return bucket(most, LEAST_COLUMNS)
        # Most completions end before their limit. Too few columns cost a copy of all that are in use, so they double.
        needed = used + self.look_every_tokens
        return min(most, max(LEAST_COLUMNS, 1 << (needed - 1).bit_length()))

    def read_columns(self, used: int, columns: int) -> int:
        """Return how many of a batch's columns attention reads."""
        return min(bucket(used, LEAST_COLUMNS), columns) if self.bucketed else used


EAGER = BatchShapes(bucketed=False, look_every_tokens=1)
GRAPHS = BatchShapes(bucketed=True, look_every_tokens=16)


class Arena:
    """Memory that one cache after another uses. Writing to fresh memory takes longer than to memory used before."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._taken = 0

    @property
    def bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def reset(self) -> None:
        """Mark everything that was taken as free again."""
        self._taken = 0

    def tensor(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return an uninitialised tensor of the dtype and on the device of `like`."""
        if self._taken == len(self._blocks):
            self._blocks.append(like.new_empty(0))
        if self._blocks[self._taken].numel() < math.prod(shape):
            self._blocks[self._taken] = like.new_empty(math.prod(shape))
        # Tensors are taken in the same order each time, so each block is soon large enough for its turn.
        block = self._blocks[self._taken]
        self._taken += 1
        return block[: math.prod(shape)].view(shape)


class StaticCache(Cache):  # type: ignore[misc]  # transformers ships it untyped
    """Keys and values of R rows and S columns.

    A pass of the model over one token of the first rows writes column `column` and reads the first `read_columns`
    columns. `column` is a [1] int64 tensor, so that a recorded pass writes to its current value when it is replayed.
    """

    def __init__(self, like: Layers, rows: int, columns: int, column: Tensor, arena: Arena) -> None:
        """Take the tensors of the cache from the arena.

        `like`: keys and values of the same heads, with any number of rows and columns.
        """
        super().__init__(layers=[])
        self.read_columns = columns
        self.writes_last = False
        """True if a pass writes the last column that it reads: known on the host, that costs less than an index."""
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
        """Write new keys and values [r, H, 1, D] of the first r rows, and return those of the columns to read.

        A layer's attention calls it.
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
        """Copy each row of the prefilled keys and values into `samples` rows, from `first_row` on.

        Their columns become the first columns.
        """
        for buffers, given in zip(self._buffers, prefilled, strict=True):
            for buffer, rows in zip(buffers, given, strict=True):
                target = buffer[first_row : first_row + len(rows) * samples, :, : rows.shape[2]]
                by_row = target.view(len(rows), samples, *target.shape[1:])
                by_row.copy_(rows[:, None].expand(-1, samples, -1, -1, -1))

    def take_over(self, other: StaticCache, rows: Tensor, columns: int) -> None:
        """Copy the first columns of some rows (int64 indices) of another cache into the first rows of this one.

        If `other` is this cache, only rows that move are copied.
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
        """Zero all but the first columns: attention masks the others, but their values must be finite."""
        for buffers in self._buffers:
            for buffer in buffers:
                buffer[:, :, columns:].zero_()


class LayerMasks:
    """The columns that each layer of a model sees, as additive masks in the form that the model takes."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Find the kinds of the model's layers.

        Raises RefusedError for a model with layers other than full or sliding-window attention.
        """
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        # A model whose layers differ takes a mask for each kind of layer, any other model takes one mask.
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

        visible [R, S]: 0 in columns of a row's tokens, -inf elsewhere; numbers [S]: 0, 1, 2, ...
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
    """The result of a pass over some of the prompts."""

    first: int
    """The index of the first of these prompts."""
    layers: Layers
    """Their keys and values [p, H, W, D]."""
    logits: Tensor
    """[p, V] of the next token."""


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]], pad_token_id: int) -> Iterator[Prefilled]:
    """Yield the results of passes over prompts padded on the left, as many at a time as PREFILL_TOKENS allow."""
    # All passes have the width of the longest prompt, so that every prompt ends in the same column.
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
    """Attend with one token a row on a CPU, by two batched matrix products.

    They are faster there than torch's fused kernel, which is made for long queries. query [R, H, 1, D], key and value
    [R, K, S, D], additive mask [R, 1, 1, S] -> [R, 1, H, D]. The signature is that of transformers' attention
    functions. Raises RefusedError for a softcap or a position bias, which this attention lacks.
    """
    if softcap is not None or position_bias is not None:
        raise RefusedError("engines.attention_not_supported", module=type(module).__name__)
    rows, heads, _, size = query.shape
    # Query heads that share a key head are the rows of one product, so keys and values are not repeated.
    grouped = (query * scaling).reshape(rows, key.shape[1], heads // key.shape[1], size)
    weights = torch.softmax(torch.matmul(grouped, key.transpose(2, 3)).add_(attention_mask), dim=-1)
    return torch.matmul(weights, value).reshape(rows, 1, heads, value.shape[3]), None


AttentionInterface.register(ONE_TOKEN_ATTENTION, one_token_attention)


@contextmanager
def one_token_at_a_time(model: PreTrainedModel) -> Iterator[None]:
    """Let a model on a CPU that attends by `sdpa` use `one_token_attention` in this context.

    It then takes only one token a row.
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
"""Additive [R, 1, 1, S]; if a model's layers differ, one for each kind of layer."""


class OneTokenPass:
    """Calls the model's own layers one after another, and skips what surrounds them in the model's forward pass.

    For a small model on a CPU, the rest takes a fifth of the time. The first call finds out whether the layers are all
    that the model does: they must give the same bits as the whole. A model that does more is called as a whole.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._decoder = model.get_decoder()
        self.by_layers: bool | None = None if _has_known_parts(model) else False
        """True if the layers are called one after another; None until it is found out."""
        rotary = getattr(self._decoder, "rotary_emb", None)
        self._angles_by_kind = rotary is not None and "layer_type" in signature(rotary.forward).parameters
        self._kinds = getattr(self._decoder.config, "layer_types", None)

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Masks, cache: StaticCache) -> Tensor:
        """Return the logits [R, V] after tokens [R] at positions [R], and write their keys and values to the cache."""
        if self.by_layers is None:
            # Both write this token's keys and values into the cache. The whole model runs last: its values stay.
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
