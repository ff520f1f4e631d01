"""The numbers of a cell's steps by field: what rows of steps.jsonl and timing.jsonl become as soon as they are read.

A sweep has tens of thousands of rows of some sixty fields. As columns they are a tenth of the memory, and a mean or a
curve of one field looks at that field alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.statistics import FloatArray


@dataclass(frozen=True)
class Columns:
    """`length` rows; each field's values [length], integers where every row has one, else floats with NaN where a row
    has none."""

    length: int
    fields: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], needed: Sequence[str] = ()) -> Columns:
        """Raises ValueError, naming the field, where a value is no number, or a row lacks one of the `needed`."""
        names = dict.fromkeys(name for row in rows for name in row)
        columns = cls(len(rows), {name: _column(name, [row.get(name) for row in rows]) for name in names})
        for name in needed:
            if rows and (gaps := np.flatnonzero(np.isnan(columns[name]))).size:
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


def _column(name: str, values: list[Any]) -> npt.NDArray[Any]:
    if all(type(value) is int for value in values):
        return np.array(values, dtype=np.int64)
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError):
        raise ValueError(f"{name!r} holds something that is no number") from None
