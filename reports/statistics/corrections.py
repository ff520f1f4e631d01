"""Corrections of p values for several contrasts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.statistics.checks import FloatArray


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Holm's adjusted p values [m] in the order given: reject those at or below alpha (Holm 1979).

    Keeps the chance of any false rejection at alpha. Raises ValueError for a p value outside [0, 1]; give 1.0 for a
    contrast that could not be tested.
    """
    p = _p_values(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def benjamini_hochberg(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Benjamini and Hochberg's adjusted p values [m] ("q values") in the order given (1995, J. R. Stat. Soc. B 57:289).

    Rejecting those at or below alpha keeps the expected share of false ones among the rejections at alpha, for
    independent or positively dependent tests: for screening many effects, where `holm` is for the few that a sweep was
    made for. Raises ValueError for a p value outside [0, 1]; give 1.0 for a contrast that could not be tested.
    """
    p = _p_values(p_values)
    order = np.argsort(p, kind="stable")[::-1]
    ranks = np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(p[order] * len(p) / ranks))
    return adjusted


def _p_values(given: Sequence[float] | FloatArray) -> FloatArray:
    p = np.asarray(given, dtype=np.float64)
    if p.ndim != 1 or not bool(np.all((p >= 0) & (p <= 1))):
        raise ValueError(f"p values are {given}: each must lie in [0, 1]; give 1.0 for a contrast without a test")
    return p
