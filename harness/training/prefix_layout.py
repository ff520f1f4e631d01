"""Rows that share prompts, laid out for one pass without padding in which every prompt is there once.

The tokens of a batch stand in line: first the distinct prompts, then each row's completion without its last token,
which predicts nothing. Everything in a transformer but its attention looks at one token at a time and runs on the line
as it is. Attention needs blocks [sequences, positions]: one of all prompts, and some of completions of similar length.

Shapes: n rows, P distinct prompts, W longest prompt, T longest completion, M tokens in line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_FILL = 0.5
"""How long a block's shortest completion is at least, in relation to its longest: against padding. A higher share makes
more and smaller blocks, each of which costs a call of the attention kernel."""


@dataclass(frozen=True)
class Block:
    """Sequences of similar length that stand next to each other in line, and pass through attention together."""

    start: int
    """Of the first token in line."""
    lengths: Tensor
    """[b] int64, none of them 0."""

    @cached_property
    def width(self) -> int:
        return int(self.lengths.max())

    @cached_property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @cached_property
    def places(self) -> Tensor | None:
        """[tokens] int64 place of each token in the padded block; None: there is no padding."""
        if self.tokens == len(self.lengths) * self.width:
            return None
        valid = torch.arange(self.width, device=self.lengths.device) < self.lengths[:, None]
        return valid.flatten().nonzero()[:, 0]

    def padded(self, line: Tensor) -> Tensor:
        """[b, width, ...] of [M, ...], 0 in padding."""
        own = line[self.start : self.start + self.tokens]
        count = len(self.lengths) * self.width
        if self.places is not None:
            own = _Spread.apply(own, self.places, count)  # type: ignore[no-untyped-call]
        return own.reshape(len(self.lengths), self.width, *line.shape[1:])

    def in_line(self, padded: Tensor) -> Tensor:
        """[tokens, ...] of [b, width, ...]: what `padded` did, undone."""
        every = padded.flatten(0, 1)
        if self.places is None:
            return every
        chosen: Tensor = _Collect.apply(every, self.places)  # type: ignore[no-untyped-call]
        return chosen


@dataclass(frozen=True)
class CompletionBlock(Block):
    """Completions, each after its prompt."""

    prompts: Tensor
    """[b] int64: which of the P prompts."""


@dataclass(frozen=True)
class PrefixLayout:
    """A batch in line."""

    tokens: Tensor
    """[M] int64 token ids."""
    positions: Tensor
    """[M] int64 place of each token in its own sequence, from 0."""
    prompts: Block
    completions: list[CompletionBlock]
    predictors: Tensor
    """[n, T] int64: place in line of the token that predicts each completion token; any place in padding."""

    @classmethod
    def of(
        cls, prompts: Tensor, prompt_lengths: Tensor, prompt_of_row: Tensor, completions: Tensor, lengths: Tensor
    ) -> PrefixLayout:
        """prompts [P, W] right-padded, prompt_lengths [P] (none 0), prompt_of_row [n], completions [n, T] right-padded,
        lengths [n]; all int64 and on one device. Rows may come in any order."""
        device = prompts.device
        fed = (lengths - 1).clamp_min(0)
        order = fed.argsort(stable=True)
        fed, prompt_of_row, completions = fed[order], prompt_of_row[order], completions[order]
        prompt_places = torch.arange(prompts.shape[1], device=device)
        places = torch.arange(completions.shape[1], device=device)
        in_prompt, is_fed = prompt_places < prompt_lengths[:, None], places < fed[:, None]
        after_prompt = prompt_lengths[prompt_of_row, None] + places
        tokens = torch.cat([prompts[in_prompt], completions[is_fed]])
        positions = torch.cat([prompt_places.expand_as(prompts)[in_prompt], after_prompt[is_fed]])

        prompt_tokens = int(prompt_lengths.sum())
        start_of_row = prompt_tokens + fed.cumsum(0) - fed
        predictors = torch.empty_like(completions)
        predictors[order] = (start_of_row[:, None] + places - 1).clamp(max=len(tokens) - 1)
        predictors[order, :1] = (prompt_lengths.cumsum(0) - 1)[prompt_of_row, None]

        blocks, start = [], prompt_tokens
        for first, end in _similar(fed.tolist()):
            block = CompletionBlock(start, fed[first:end], prompt_of_row[first:end])
            blocks.append(block)
            start += block.tokens
        return cls(tokens, positions, Block(0, prompt_lengths), blocks, predictors)

    def attention_mask(self, block: CompletionBlock, window: int | None) -> Tensor:
        """Bool [b, 1, width, W + width]: what each token of the block may attend to, of its prompt and its own block.

        window: it sees only so many positions back, itself included; None: all. Kept, since the layers share it.
        """
        key = (block.start, window)
        if key not in self._masks:
            prompt_length = self.prompts.lengths[block.prompts, None, None]
            prompt_place = torch.arange(self.prompts.width, device=self.tokens.device)
            place = torch.arange(block.width, device=self.tokens.device)
            behind = place[:, None] - place
            in_prompt, in_completion = prompt_place < prompt_length, behind >= 0
            if window is not None:
                in_prompt = in_prompt & (prompt_length + place[:, None] - prompt_place < window)
                in_completion = in_completion & (behind < window)
            shape = (len(block.lengths), block.width, -1)
            self._masks[key] = torch.cat([in_prompt.expand(shape), in_completion.expand(shape)], 2)[:, None]
        return self._masks[key]

    def prompt_mask(self, window: int | None) -> Tensor | None:
        """Bool [1, 1, W, W] for the prompts, whose padding is behind their tokens; None: all that is before a token."""
        if window is None or window >= self.prompts.width:
            return None
        place = torch.arange(self.prompts.width, device=self.tokens.device)
        behind = place[:, None] - place
        return ((behind >= 0) & (behind < window))[None, None]

    @cached_property
    def _masks(self) -> dict[tuple[int, int | None], Tensor]:
        return {}


def _similar(lengths: list[int]) -> list[tuple[int, int]]:
    """Split ascending lengths into runs [first, end), each at most 1 / BLOCK_FILL times as long as its first; without
    lengths of 0."""
    runs: list[tuple[int, int]] = []
    for index, length in enumerate(lengths):
        if runs and lengths[runs[-1][0]] >= BLOCK_FILL * length:
            runs[-1] = (runs[-1][0], index + 1)
        elif length > 0:
            runs.append((index, index + 1))
    return runs


class _Spread(torch.autograd.Function):
    """[count, ...] with rows [m, ...] at these places, each at its own, and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(places)
        return rows.new_zeros((count, *rows.shape[1:])).index_copy_(0, places, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class _Collect(torch.autograd.Function):
    """The rows at these places, none of them twice: an index_select whose backward pass need not add anything up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros((ctx.count, *gradient.shape[1:])).index_copy_(0, places, gradient), None
