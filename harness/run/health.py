"""Health flags: outcomes worth a flag. A flagged cell is scored and kept; the comparison is also shown without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# A policy below a tenth of its first entropy explores nothing any more; on easy data this can be a fair outcome.
ENTROPY_COLLAPSE_FRAC = 0.1
LENGTH_BLOWUP_FACTOR = 3.0
TRUNCATED_FRAC = 0.5
_WINDOW_STEPS = 5


def health_flags(steps: Sequence[Mapping[str, Any]], diverged: bool) -> list[str]:
    """Flags from the rows of steps.jsonl: `nan`, `entropy_collapse`, `length_blowup`, `truncation`.

    First and last values are means over five steps.
    """
    flags = ["nan"] if diverged else []
    if len(steps) < 2 * _WINDOW_STEPS:
        return flags
    first, last = steps[:_WINDOW_STEPS], steps[-_WINDOW_STEPS:]
    if _mean(last, "entropy/full") < ENTROPY_COLLAPSE_FRAC * _mean(first, "entropy/full"):
        flags.append("entropy_collapse")
    if _mean(last, "len/mean") > LENGTH_BLOWUP_FACTOR * _mean(first, "len/mean"):
        flags.append("length_blowup")
    if _mean(last, "len/truncated_frac") > TRUNCATED_FRAC:
        flags.append("truncation")
    return flags


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return sum(float(row[key]) for row in rows) / len(rows)
