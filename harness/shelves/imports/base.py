"""Import formats: their interface, their result, and the registry."""

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
    """One graded completion. Fields that a source does not give are None."""

    task: str
    problem_id: str
    sample: int
    """Its number among the samples of its problem, from 0."""
    correct: bool
    step: int | None = None
    """The training step after which it was sampled; None for the end."""
    n_tokens: int | None = None
    truncated: bool | None = None
    text: str | None = None
    extracted: str | None = None
    prompt: str | None = None
    answer: str | None = None
    content: str | None = None
    """A digest of the question and the reference answer. It identifies the problem whatever its id (`content_of`)."""


@dataclass(frozen=True)
class Score:
    """One number of an evaluation."""

    task: str
    metric: str
    value: float
    step: int | None = None
    """As in `ImportedSample`."""


@dataclass
class ImportedRun:
    """One run, as one source describes it."""

    source: str
    """The file, as given."""
    name: str
    """The run's name in the source."""
    arm: str | None = None
    """The arm; None unless the source says it. The same holds for the seed."""
    seed: int | None = None
    samples: list[ImportedSample] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    """The fields of each training step, from 1, under the names of steps.jsonl."""
    config: dict[str, Any] = field(default_factory=dict)
    """The run's settings by their dotted names; those of its evaluation begin with `eval.`."""


@dataclass(frozen=True, eq=False)
class ImportFormat:
    """A file format of one tool."""

    name: str
    summary: str
    reads: Callable[[str], bool]
    """Returns whether a source, a path or an address, has this format. It looks at the beginning of a file at most."""
    read: Callable[[Sequence[str]], list[ImportedRun]]
    """Returns the runs in some sources, in their order.

    Raises RefusedError, with the position, for a source that its tool did not write.
    """
    bookkeeping: frozenset[str] = frozenset()
    """Settings, by the last part of their names, that only say what a run is called or where it writes.

    The gate ignores them.
    """


FORMATS: Kind[ImportFormat] = Kind(
    "format", lambda thing: isinstance(thing, ImportFormat), "harness.shelves.imports.formats", "bench ls formats"
)


def format_of(source: str, named: str | None = None) -> ImportFormat | None:
    """Return the format of a source, or None if no format reads it.

    Raises RefusedError if several formats read it, and UnknownNameError if the named one is unknown.
    """
    if named is not None:
        return FORMATS.find(named)
    found = [one for one in FORMATS.all().values() if one.reads(source)]
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise RefusedError("shelves.imports.several_formats", source=source, formats=names)
    return found[0] if found else None


def beginning(source: str, n_bytes: int = 4096) -> bytes:
    """Read the first bytes of a file; return b"" for anything else."""
    path = Path(source)
    if not path.is_file():
        return b""
    with path.open("rb") as handle:
        return handle.read(n_bytes)


def finite(values: Iterable[tuple[str, object]]) -> dict[str, float]:
    """Return the named values that are finite numbers."""
    return {
        name: float(value)
        for name, value in values
        # bool is a subclass of int.
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
