"""The word for an interval: which of two arms is better, if either."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["identical", "better", "worse", "equivalent", "inconclusive", "no_test"]

MIN_PAIRS = 3
"""Seeds (in each arm) below which nothing is tested."""


def verdict_of(n: int, low: float, high: float, margin: float | None, identical: bool = False) -> Verdict:
    """The first that holds of: identical; no_test (fewer than three seeds); better or worse (interval on one side of
    zero); equivalent (interval inside [-margin, margin]: two one-sided tests at half the level); inconclusive."""
    if identical:
        return "identical"
    if n < MIN_PAIRS:
        return "no_test"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    if margin is not None and -margin <= low and high <= margin:
        return "equivalent"
    return "inconclusive"
