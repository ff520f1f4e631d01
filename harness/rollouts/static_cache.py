"""The key-value cache of decoding: tensors that are made once for a batch and written in place.

Shapes: R rows, H heads, S columns, D size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import Cache

Layers = Sequence[tuple[Tensor, Tensor]]
"""Keys and values [R, H, S, D] of each layer; H and D may differ between layers."""


class Arena:
    """Memory of one cache after another. Writing to fresh memory takes longer than to memory that was used before."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._taken = 0

    @property
    def bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def reset(self) -> None:
        """What was taken is free again."""
        self._taken = 0

    def tensor(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """An uninitialised tensor of the dtype and on the device of `like`."""
        if self._taken == len(self._blocks):
            self._blocks.append(like.new_empty(0))
        if self._blocks[self._taken].numel() < math.prod(shape):
            self._blocks[self._taken] = like.new_empty(math.prod(shape))
        block = self._blocks[self._taken]
        self._taken += 1
        return block[: math.prod(shape)].view(shape)


class StaticCache(Cache):  # type: ignore[misc]  # transformers ships it untyped
    """Keys and values of R rows and S columns.

    A pass of the model over one token of each row writes column `column` ([1] int64: a tensor, so that a recorded pass
    writes where the tensor says when it is replayed) and reads the first `read_columns` columns.
    """

    def __init__(self, like: Layers, rows: int, columns: int, column: Tensor, arena: Arena) -> None:
        """`like`: of the same heads, and any number of rows and columns."""
        super().__init__(layers=[])
        self.read_columns = columns
        self._column = column
        arena.reset()

        def buffer(tensor: Tensor) -> Tensor:
            return arena.tensor(tensor, (rows, tensor.shape[1], columns, tensor.shape[3]))

        self._buffers = [(buffer(keys), buffer(values)) for keys, values in like]

    @property
    def buffers(self) -> Layers:
        return self._buffers

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """What a layer's attention calls: its new keys and values [R, H, 1, D] in, those of the columns to read out."""
        keys, values = self._buffers[layer_idx]
        keys.index_copy_(2, self._column, key_states)
        values.index_copy_(2, self._column, value_states)
        return keys[:, :, : self.read_columns], values[:, :, : self.read_columns]

    def fill(self, prefilled: Layers, first_row: int, samples: int) -> None:
        """Copy each row of the prefilled keys and values into `samples` rows, from `first_row` on, and their columns
        into the first ones."""
        for buffers, given in zip(self._buffers, prefilled, strict=True):
            for buffer, rows in zip(buffers, given, strict=True):
                target = buffer[first_row : first_row + len(rows) * samples, :, : rows.shape[2]]
                by_row = target.view(len(rows), samples, *target.shape[1:])
                by_row.copy_(rows[:, None].expand(-1, samples, -1, -1, -1))

    def take_over(self, other: StaticCache, rows: Tensor, columns: int) -> None:
        """Copy some rows (int64 indices) of another cache into the first ones, and the first columns of them."""
        for mine, theirs in zip(self._buffers, other._buffers, strict=True):
            for target, source in zip(mine, theirs, strict=True):
                target[: len(rows), :, :columns] = source[:, :, :columns].index_select(0, rows)

    def zero_beyond(self, columns: int) -> None:
        """Zero all but the first columns: what is read there is masked, but must be finite."""
        for buffers in self._buffers:
            for buffer in buffers:
                buffer[:, :, columns:].zero_()
