"""A batch of completions being decoded, and the step that draws one token for each of them.

Shapes: N samples, R rows, S columns of the cache, T longest completion, V vocabulary. A row is what the model computes
for a sample, or for several that have drawn the same tokens after the same prompt: those share it until they part.
Prompts are padded on the left, so that all rows write the same column.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.engines.base import SamplingParams
from harness.engines.token_sampling import sample
from harness.engines.torch.attention import OneTokenPass
from harness.engines.torch.cache import Arena, LayerMasks, Layers, StaticCache


@dataclass(frozen=True)
class Decoder:
    """A model with what decoding needs to know of it. eos_token_ids [E] int64, on the model's device."""

    model: PreTrainedModel
    one_token_pass: OneTokenPass
    masks: LayerMasks
    eos_token_ids: Tensor


@dataclass(frozen=True)
class Survivors:
    """With what a batch goes on, as int64 indices into its samples and rows.

    samples [n]; rows [r], one of them several times where its samples part; last_tokens [r]; row_of_sample [n]: which
    of the r rows is a sample's, or None where each has its own, in the order of the samples.
    """

    samples: Tensor
    rows: Tensor
    last_tokens: Tensor
    row_of_sample: Tensor | None
    part: bool


class DecodingBatch:
    """The first `count` of N samples are completions; the others, and their rows, only fill the batch up.

    The step works in tensors that stay where they are, and takes nothing from the host that changes from token to
    token, so that it can be recorded and replayed.
    """

    def __init__(
        self, decoder: Decoder, like: Layers, samples: int, rows: int, columns: int, max_tokens: int, arena: Arena
    ) -> None:
        """`like`: keys and values of the same heads. max_tokens: T. arena: of the cache."""
        device = decoder.model.device

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self._decoder = decoder
        self.count, self.rows, self.columns = samples, rows, columns
        self._column, self._drawn = integers(1), integers(1)
        self._column_numbers = torch.arange(columns, device=device)
        self._last_token, self._last_position = integers(rows), integers(rows)
        self._visible = torch.zeros((rows, columns), dtype=decoder.model.dtype, device=device)
        self.cache = StaticCache(like, rows, columns, self._column, arena)
        self.row_of_sample: Tensor | None = None
        """[N], or None: a sample's row is that of its own number."""
        self._keys = integers(samples)
        self.ended = torch.zeros(samples, dtype=torch.bool, device=device)
        """[N], set at an end-of-sequence token, or by the host."""
        self.tokens = integers(max_tokens, samples)
        """[T, N], of which the host knows how many are drawn."""
        self.logps = torch.zeros((max_tokens, samples), device=device)

    def start(self, prompt_tokens: Tensor, width: int, keys: Tensor, row_of_sample: Tensor | None) -> None:
        """Begin with rows of so many prompt tokens [r] and samples of these noise keys [n]. The caller fills the cache:
        `width` columns, prompts at their end."""
        rows = len(prompt_tokens)
        self._begin(len(keys), row_of_sample)
        self._column.fill_(width - 1)
        self._drawn.zero_()
        self._last_position[:rows] = prompt_tokens - 1
        hidden = (self._column_numbers < width - prompt_tokens[:, None]) | (self._column_numbers >= width)
        self._visible[:rows] = torch.where(hidden, -torch.inf, 0.0)
        self._keys[: self.count] = keys

    def take_over(self, other: DecodingBatch, survivors: Survivors, used_columns: int) -> None:
        """Begin where another batch is now, with what survives of it."""
        self._begin(len(survivors.samples), survivors.row_of_sample)
        self._column.copy_(other._column)
        self._drawn.copy_(other._drawn)
        rows = slice(len(survivors.rows))
        self._last_token[rows] = survivors.last_tokens
        self._last_position[rows] = other._last_position[survivors.rows]
        self._visible[rows, :used_columns] = other._visible[:, :used_columns].index_select(0, survivors.rows)
        self._visible[rows, used_columns:] = -torch.inf
        self._keys[: self.count] = other._keys[survivors.samples]
        self.cache.take_over(other.cache, survivors.rows, used_columns)

    def _begin(self, count: int, row_of_sample: Tensor | None) -> None:
        self.count, self.row_of_sample = count, row_of_sample
        self.ended[:count] = False
        self._last_token.zero_()
        self._last_position.zero_()

    def draw(self, logits: Tensor, params: SamplingParams) -> None:
        """The next token of each sample from the logits [R, V] of the rows; of the first r only, if given [r, V]."""
        if self.row_of_sample is not None:
            logits = logits.index_select(0, self.row_of_sample)
        some = slice(len(logits))
        tokens, logps = sample(logits, self._keys[some], self._drawn, params.temperature, params.top_p, params.top_k)
        self.tokens[:, some].index_copy_(0, self._drawn, tokens[None])
        self.logps[:, some].index_copy_(0, self._drawn, logps[None])
        self.ended[some].logical_or_((tokens[:, None] == self._decoder.eos_token_ids).any(1))
        self._drawn.add_(1)
        if self.row_of_sample is None:
            self._last_token[some] = tokens

    def survivors(self, drawn: int) -> Survivors:
        """The samples that have not ended after so many tokens, and the rows they need."""
        samples = (~self.ended[: self.count]).nonzero()[:, 0]
        last_tokens = self.tokens[drawn - 1].index_select(0, samples)
        if self.row_of_sample is None:
            return Survivors(samples, samples, last_tokens, None, False)
        rows = self.row_of_sample.index_select(0, samples)
        prefixes, row_of_sample = torch.unique(rows << 32 | last_tokens, return_inverse=True)
        prefix_rows = prefixes >> 32
        part = bool((prefix_rows[1:] == prefix_rows[:-1]).any())
        if len(prefixes) == len(samples):
            return Survivors(samples, rows, last_tokens, None, part)
        return Survivors(samples, prefix_rows, prefixes & (1 << 32) - 1, row_of_sample, part)

    def feed(self, survivors: Survivors) -> None:
        """Go on with rows that nobody parts from; samples that have ended stay."""
        self._last_token[survivors.rows] = survivors.last_tokens

    def step(self, params: SamplingParams, read_columns: int) -> None:
        """Feed each row's last token and draw the samples' next ones. read_columns: columns that attention reads, at
        least those in use, the fed tokens' included."""
        self._column.add_(1)
        self._last_position.add_(1)
        self._visible.index_fill_(1, self._column, 0.0)
        self.cache.read_columns = read_columns
        masks = self._decoder.masks.of(
            self._visible[:, :read_columns], self._column, self._column_numbers[:read_columns]
        )
        self.draw(self._decoder.one_token_pass(self._last_token, self._last_position, masks, self.cache), params)
