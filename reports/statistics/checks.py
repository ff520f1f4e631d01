"""What every array of scores and every level must satisfy, and the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Subtracting two scores leaves rounding errors of about 1e-16 of their size; a spread below this is none.
RELATIVE_TOLERANCE = 1e-12


def finite_scores(name: str, values: Sequence[float] | FloatArray) -> FloatArray:
    """`values` as floats [n_seeds]. Raises ValueError if they are no non-empty list of finite numbers."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} has shape {array.shape}: give one score per seed, a non-empty list [n_seeds]")
    if not bool(np.isfinite(array).all()):
        bad = np.flatnonzero(~np.isfinite(array)).tolist()
        raise ValueError(f"{name} is not finite at positions {bad}: leave out seeds without a score, in both arms")
    return array


def finite_table(name: str, values: Sequence[Sequence[float]] | FloatArray, axes: str) -> FloatArray:
    """`values` as floats [rows, columns]. Raises ValueError if they are no non-empty table of finite numbers."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: give a non-empty table {axes}")
    if not bool(np.isfinite(array).all()):
        raise ValueError(f"{name} has entries that are not finite: leave out the rows or columns that lack a score")
    return array


def require_level(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}: a significance level lies between 0 and 1, e.g. 0.05")


def require_margin(margin: float | None) -> None:
    if margin is not None and not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin is {margin}: it must be a finite number >= 0, or None for no test of equivalence")


def sample_sd(values: FloatArray) -> float:
    """With n - 1; NaN for one value."""
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan
