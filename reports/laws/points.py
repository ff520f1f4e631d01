"""The points that laws are fitted to, and what no law is fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Numbers = Sequence[float] | FloatArray

MIN_POINTS = 8


class LawRefusedError(ValueError):
    """The points do not determine the law; the message says why."""


def finite_points(**columns: Numbers) -> list[FloatArray]:
    """The columns as floats [n]. Raises LawRefusedError unless they are finite, equally long and long enough."""
    arrays = [np.asarray(column, dtype=np.float64) for column in columns.values()]
    names = " and ".join(columns)
    if any(array.ndim != 1 for array in arrays) or len({len(array) for array in arrays}) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise LawRefusedError(f"{names} have shapes {shapes}: each needs a number a point, lists of one length")
    for name, array in zip(columns, arrays, strict=True):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        if bad:
            raise LawRefusedError(f"{name} is not finite at {bad} of {len(array)} points: leave those out")
    if len(arrays[0]) < MIN_POINTS:
        raise LawRefusedError(f"{len(arrays[0])} points, and a fit needs {MIN_POINTS}")
    return arrays


@dataclass(frozen=True)
class Run:
    """The points of one training run, arrays [points]: `step`, increasing, 0 before training; `entropy` in nats per
    token; `reward`, a training reward or a score."""

    step: FloatArray
    entropy: FloatArray
    reward: FloatArray

    def __len__(self) -> int:
        return len(self.step)
