"""Which shapes decoding batches have, and how often the host looks at what was drawn.

A CUDA graph is of one shape and runs without the host: there shapes are few and looks rare. Run eagerly, both are free.
"""

from __future__ import annotations

from dataclasses import dataclass

# Run eagerly, a batch has room for so many more tokens: few, as rows leave and attention is faster on dense memory.
EAGER_ROOM_TOKENS = 8


@dataclass(frozen=True)
class BatchShapes:
    """bucketed: sizes are those of a geometric ladder, not exact. look_every_tokens: after so many
    tokens the host learns which samples have ended."""

    bucketed: bool
    look_every_tokens: int

    @property
    def shares_prefixes(self) -> bool:
        """Whether samples with the same tokens so far share a row: the host must look at every token to part them."""
        return not self.bucketed and self.look_every_tokens == 1

    def rows(self, needed: int) -> int:
        """Rows of a batch that needs so many."""
        return 1 << (needed - 1).bit_length() if self.bucketed else needed

    def columns(self, used: int, most: int) -> int:
        """Columns of a batch's cache with so many in use, of which there will be `most`."""
        if self.bucketed:
            return _column_bucket(most)
        return min(most, used + max(EAGER_ROOM_TOKENS, self.look_every_tokens))

    def read_columns(self, used: int, columns: int) -> int:
        """Of a batch's columns those that attention reads."""
        return min(_column_bucket(used), columns) if self.bucketed else used


def _column_bucket(size: int) -> int:
    """A power of two from 64 on, or the middle of two."""
    power = max(64, 1 << (size - 1).bit_length())
    return power * 3 // 4 if power > 64 and size <= power * 3 // 4 else power


EAGER = BatchShapes(bucketed=False, look_every_tokens=1)
GRAPHS = BatchShapes(bucketed=True, look_every_tokens=16)
