"""Health flags: outcomes worth a flag. A flagged cell is scored and kept; the comparison is also shown without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# A policy below a tenth of its first entropy explores nothing any more; on easy data this can be a fair outcome.
ENTROPY_COLLAPSE_FRAC = 0.1
LENGTH_BLOWUP_FACTOR = 3.0
TRUNCATED_FRAC = 0.5
_WINDOW_STEPS = 5


DIVERGED = "nan"


def health_flags(steps: Sequence[Mapping[str, Any]], diverged: bool) -> list[str]:
    """Flags from the rows of steps.jsonl: `nan`, `entropy_collapse`, `length_blowup`, `truncation`.

    First and last values are means over five steps.
    """
    flags = [DIVERGED] if diverged else []
    if len(steps) < 2 * _WINDOW_STEPS:
        return flags
    first, last = steps[:_WINDOW_STEPS], steps[-_WINDOW_STEPS:]

    def changed_by(key: str) -> float:
        """Last over first; 1 where either is unknown."""
        before, after = _mean(first, key), _mean(last, key)
        return after / before if before and after is not None else 1.0

    if changed_by("entropy/full") < ENTROPY_COLLAPSE_FRAC:
        flags.append("entropy_collapse")
    if changed_by("len/mean") > LENGTH_BLOWUP_FACTOR:
        flags.append("length_blowup")
    if (_mean(last, "len/truncated_frac") or 0.0) > TRUNCATED_FRAC:
        flags.append("truncation")
    return flags


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Mean over the rows that have the value: a step whose groups were all dropped has no entropy, and one on given
    pairs no completions."""
    values = [float(row[key]) for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None
