"""The numbers of a cell's steps by field: what rows of steps.jsonl and timing.jsonl become as soon as they are read.

A sweep has tens of thousands of rows of some sixty fields, and a mean or a curve looks at one field alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reports.statistics import FloatArray

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Columns:
    """`length` rows; each field's values [length], integers where every row has one, else floats with NaN where a row
    has none."""

    length: int
    fields: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, table: pyarrow.Table, needed: Sequence[str] = ()) -> Columns:
        """Raises ValueError, naming the field, where a column holds no numbers, or a row lacks one of the `needed`."""
        columns = cls(len(table), {name: _numbers(name, table[name]) for name in table.column_names})
        for name in needed:
            if len(table) and (gaps := np.flatnonzero(np.isnan(columns[name]))).size:
                raise ValueError(f"row {gaps[0] + 1} lacks {name!r}")
        return columns

    def __getitem__(self, field: str) -> FloatArray:
        """[length]; all NaN if the field was not recorded. What is not finite is NaN."""
        if field not in self.fields:
            return np.full(self.length, np.nan)
        values = self.fields[field].astype(np.float64)
        values[~np.isfinite(values)] = np.nan
        return values

    def known(self, field: str) -> FloatArray:
        """The finite values of the field, in order."""
        values = self[field]
        return values[~np.isnan(values)]


def _numbers(name: str, column: pyarrow.ChunkedArray) -> npt.NDArray[Any]:
    from pyarrow import types

    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_null(column.type)):
        raise ValueError(f"{name!r} holds something that is no number")
    values = column.combine_chunks()
    if not types.is_integer(column.type) or values.null_count:
        values = values.cast("float64")  # null becomes NaN
    numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers
