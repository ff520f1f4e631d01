"""What a format is, what it reads out of a file, and which formats there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import RefusedError
from harness.plugins import Kind

RESULTS = "results"
"""The task of results that name none."""


@dataclass(frozen=True)
class ImportedSample:
    """One graded completion. sample: its number among those of its problem, from 0. step: after how many steps of
    training it was drawn; None for the end. What a source does not say is None."""

    task: str
    problem_id: str
    sample: int
    correct: bool
    step: int | None = None
    n_tokens: int | None = None
    truncated: bool | None = None
    text: str | None = None
    extracted: str | None = None
    prompt: str | None = None
    answer: str | None = None
    content: str | None = None
    """Digest of the question and the reference answer, which says what problem it is whatever its id (`content_of`)."""


@dataclass(frozen=True)
class Score:
    """One number of an evaluation. step: as in `ImportedSample`."""

    task: str
    metric: str
    value: float
    step: int | None = None


@dataclass
class ImportedRun:
    """What one source says of one run.

    source: the file, as given. name: what the source calls the run. arm, seed: None unless the source says them. steps:
    by training step, from 1, its fields under the names of steps.jsonl. config: the run's settings by their dotted
    names; those of its evaluation begin with `eval.`.
    """

    source: str
    name: str
    arm: str | None = None
    seed: int | None = None
    samples: list[ImportedSample] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ImportFormat:
    """Files of one tool.

    reads: whether a source, a path or an address, is of this format; it looks at the beginning of a file at most. read:
    the runs in some sources, in their order; raises RefusedError, with the place, for one that is not what its tool
    writes. bookkeeping: settings, by the last part of their names, that only say what a run is called or where it
    writes: the gate passes over them.
    """

    name: str
    summary: str
    reads: Callable[[str], bool]
    read: Callable[[Sequence[str]], list[ImportedRun]]
    bookkeeping: frozenset[str] = frozenset()


FORMATS: Kind[ImportFormat] = Kind(
    "format", lambda thing: isinstance(thing, ImportFormat), "harness.shelves.imports.formats", "bench ls formats"
)


def format_of(source: str, named: str | None = None) -> ImportFormat | None:
    """The format of a source; None if no format reads it. Raises RefusedError if several do, UnknownNameError for an
    unknown one that is named."""
    if named is not None:
        return FORMATS.find(named)
    found = [one for one in FORMATS.all().values() if one.reads(source)]
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise RefusedError(f"{source}: may be of several formats, {names}. Name one with --format.")
    return found[0] if found else None


def beginning(source: str, n_bytes: int = 4096) -> bytes:
    """The first bytes of a file; none of anything else."""
    path = Path(source)
    if not path.is_file():
        return b""
    with path.open("rb") as handle:
        return handle.read(n_bytes)


def finite(values: Iterable[tuple[str, object]]) -> dict[str, float]:
    """Those of some named values that are finite numbers."""
    return {
        name: float(value)
        for name, value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
