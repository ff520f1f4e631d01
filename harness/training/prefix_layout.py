"""A batch of rows that share prompts, laid out for one pass: every prompt once, however many completions follow it, and
no padding except in attention itself.

The tokens of a batch stand in line: first the distinct prompts, then each row's completion without its last token,
which predicts nothing. Everything in a transformer except attention looks at one token at a time and runs on the line
as it is. Attention needs blocks [sequences, positions]: one of all prompts, and some of completions of similar length.

A layout is made on the host, which knows all lengths, and comes to the device in one copy (`on_device`): there the host
would have to wait for each number that it reads back.

Shapes: n rows, P distinct prompts, W longest prompt, T longest completion, M tokens in line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_FILL = 0.5
"""The shortest completion of a block is at least this share as long as its longest, which limits padding. A higher
share makes more and smaller blocks, and each costs a call of the attention kernel."""
MASK_ALIGNMENT = 16
"""Elements; torch's `pad_bias` in aten/src/ATen/native/transformers/attention.cpp."""


@dataclass(frozen=True)
class Block:
    """Sequences of similar length that stand next to each other in line, and pass through attention together."""

    start: int
    """The place in line of the first token."""
    width: int
    tokens: int
    lengths: Tensor
    """[b] int64, none of them 0."""
    places: Tensor | None
    """[tokens] int64 place of each token in the padded block; None: there is no padding."""

    @classmethod
    def of(cls, start: int, lengths: Tensor, *own: Tensor) -> Self:
        """lengths [b] on the host, as all that is made from them here; own: the tensors that a subclass adds."""
        width, tokens = int(lengths.max()), int(lengths.sum())
        padding = tokens < len(lengths) * width
        places = (torch.arange(width) < lengths[:, None]).flatten().nonzero()[:, 0] if padding else None
        return cls(start, width, tokens, lengths, places, *own)

    def padded(self, line: Tensor) -> Tensor:
        """[b, width, ...] of [M, ...], 0 in padding."""
        own = line[self.start : self.start + self.tokens]
        count = len(self.lengths) * self.width
        if self.places is not None:
            own = spread(own, self.places, count)
        return own.reshape(len(self.lengths), self.width, *line.shape[1:])

    def in_line(self, padded: Tensor) -> Tensor:
        """[tokens, ...] of [b, width, ...]: undoes what `padded` did."""
        every = padded.flatten(0, 1)
        return every if self.places is None else collect(every, self.places)


@dataclass(frozen=True)
class CompletionBlock(Block):
    """Completions, each after its prompt."""

    prompts: Tensor
    """[b] int64: which of the P prompts."""


@dataclass(frozen=True)
class PrefixLayout:
    """A batch in line, laid out."""

    tokens: Tensor
    """[M] int64 token ids."""
    positions: Tensor
    """[M] int64 place of each token in its own sequence, from 0."""
    prompts: Block
    completions: list[CompletionBlock]
    predictors: Tensor
    """[n, T] int64: the place in line of the token that predicts each completion token; any place in padding."""

    @classmethod
    def of(
        cls, prompts: Tensor, prompt_lengths: Tensor, prompt_of_row: Tensor, completions: Tensor, lengths: Tensor
    ) -> PrefixLayout:
        """prompts [P, W] right-padded, prompt_lengths [P] (none 0), prompt_of_row [n], completions [n, T] right-padded,
        lengths [n]; all int64 and on the host. Rows may come in any order."""
        fed = (lengths - 1).clamp_min(0)
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
        predictors = torch.empty_like(completions)
        predictors[order] = (start_of_row[:, None] + places - 1).clamp(max=len(tokens) - 1)
        predictors[order, :1] = (prompt_lengths.cumsum(0) - 1)[prompt_of_row, None]

        blocks, start = [], prompt_tokens
        for first, end in _similar(fed.tolist()):
            block = CompletionBlock.of(start, fed[first:end], prompt_of_row[first:end])
            blocks.append(block)
            start += block.tokens
        return cls(tokens, positions, Block.of(0, prompt_lengths), blocks, predictors)

    def attention_mask(self, block: CompletionBlock, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive [b, 1, width, W + width]: what each token of the block may attend to, of its prompt and its block.

        window: it sees only so many positions back, itself included; None: all.
        """

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

    def prompt_mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Additive [1, 1, W, W] for the prompts, whose padding is behind their tokens; None: a token sees all before
        it."""
        if window is None or window >= self.prompts.width:
            return None

        def visible() -> Tensor:
            place = torch.arange(self.prompts.width, device=self.tokens.device)
            behind = place[:, None] - place
            return ((behind >= 0) & (behind < window))[None, None]

        return self._mask(self.prompts, window, dtype, visible)

    def _mask(self, block: Block, window: int | None, dtype: torch.dtype, visible: Callable[[], Tensor]) -> Tensor:
        """0 where `visible`, -inf elsewhere; kept, since the layers share it: of a boolean mask torch's attention makes
        an additive one in each layer, and keeps it for the backward pass."""
        key = (block.start, window, dtype)
        if key not in self._masks:
            seen = visible()
            # CUDA's kernels would copy, in each layer too, a mask whose rows are not this far apart.
            columns = -seen.shape[-1] % MASK_ALIGNMENT + seen.shape[-1]
            wide = torch.zeros((*seen.shape[:-1], columns), dtype=dtype, device=seen.device)
            self._masks[key] = wide[..., : seen.shape[-1]].masked_fill_(~seen, -torch.inf)
        return self._masks[key]

    @cached_property
    def _masks(self) -> dict[tuple[int, int | None, torch.dtype], Tensor]:
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


def spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """[count, ...] with rows [m, ...] at these places, no two at one, and 0 elsewhere."""
    result: Tensor = _Spread.apply(rows, places, count)  # type: ignore[no-untyped-call]
    return result


def collect(rows: Tensor, places: Tensor) -> Tensor:
    """[m, ...] the rows at these places, none of them twice: its backward pass need not add anything up."""
    result: Tensor = _Collect.apply(rows, places)  # type: ignore[no-untyped-call]
    return result


class _Spread(torch.autograd.Function):
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


V = TypeVar("V")
PACKED_ALIGNMENT_BYTES = 16


def on_device(value: V, device: torch.device) -> V:
    """The value, whose tensors are on the host, with them on a device: in one copy of all of them, from pinned memory,
    which the host does not wait for. On a CPU the value itself.

    value: tensors in dataclasses, dicts, lists and tuples.
    """
    if device.type == "cpu":
        return value
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _with_tensors(value, note)
    sizes = [-(-tensor.nbytes // PACKED_ALIGNMENT_BYTES) * PACKED_ALIGNMENT_BYTES for tensor in tensors]
    ends = list(itertools.accumulate(sizes, initial=0))
    packed = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
    for tensor, part in zip(tensors, _parts(packed, tensors, ends), strict=True):
        part.copy_(tensor)
    sent = iter(_parts(packed.to(device, non_blocking=True), tensors, ends))
    moved: V = _with_tensors(value, lambda tensor: next(sent))
    return moved


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one dtype and one device, on the host: in one copy, for which it waits."""
    if not tensors or tensors[0].device.type == "cpu":
        return list(tensors)
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _parts(packed: Tensor, tensors: Sequence[Tensor], ends: Sequence[int]) -> list[Tensor]:
    """Views of packed bytes, each of the shape and dtype of a tensor."""
    return [
        packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, ends[:-1], strict=True)
    ]


def _with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with each tensor changed, in a fixed order."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _with_tensors(one, change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(one, change) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{own.name: _with_tensors(getattr(value, own.name), change) for own in fields(value)})
    return value
