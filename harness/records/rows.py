"""The rows of a cell's records, as readers see them after the checks.

Optional fields depend on the evaluation, or on the trainer of the cell.

This module does not postpone its annotations: in a string, TypedDict would not see `NotRequired`, and the field would
be required.
"""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from harness.records.counted import Counted

CellState = Literal["pending", "running", "done", "failed", "invalid", "interrupted", "damaged"]


class Bin(TypedDict):
    """A bin of a reliability diagram: the samples whose answer's confidence lies between two bounds."""

    count: int
    confidence: float | None
    correct_frac: float | None


class EvaluationRow(TypedDict):
    """The result of an evaluation on one task."""

    task: str
    metrics: dict[str, float | None]
    reliability: NotRequired[Sequence[Bin] | None]
    n_problems: NotRequired[int]
    n_samples: NotRequired[int]
    problems_by_right: NotRequired[list[int]]
    """For the model before training: the number of problems with 0, 1, ... right samples."""


class ScoreRow(EvaluationRow):
    """A row of scores.jsonl."""

    step: int
    final: bool
    generated_tokens: int | None
    """Completion tokens sampled in training until then; None in imported records."""
    epoch: NotRequired[int]
    """The epoch of the start that wrote it, if rows of several may be mixed."""


class TimingRow(TypedDict):
    """A row of timing.jsonl: what a step or an evaluation took. Further fields are parts of a step."""

    step: NotRequired[int]
    epoch: NotRequired[int]
    total_s: NotRequired[float]
    """The seconds of a step."""
    eval_s: NotRequired[float]
    """The seconds of an evaluation."""
    elapsed_s: NotRequired[float]
    """The seconds since the start began."""
    peak_memory_mb: NotRequired[float]


class Owner(TypedDict):
    """The process that works on a cell."""

    host: str
    pid: int


class Start(TypedDict):
    """A row of starts.jsonl: when, where and with what a cell was trained or evaluated from a step on.

    The rest of the provenance depends on the run; `CellRecord.provenances` reads it.
    """

    epoch: int
    from_step: int
    owner: NotRequired[Owner]
    time: NotRequired[str]
    registered: NotRequired[str | None]
    """The digest of the registration that the start found."""
    commit: NotRequired[str | None]
    packages: NotRequired[dict[str, str | None]]


class Status(TypedDict):
    """status.json of a cell, or of one of its evaluations."""

    state: CellState
    schema: NotRequired[int]
    reason: NotRequired[str | None]
    flags: NotRequired[list[str]]
    digest: NotRequired[str | None]
    """The digest of the final weights, or of the answers."""
    logged_steps: NotRequired[int]
    step: NotRequired[int]
    """The steps taken."""
    steps: NotRequired[int | None]
    """The steps to take."""
    generated_tokens: NotRequired[int | None]
    records: NotRequired[Counted]
    """The sizes of the files that a finished cell has."""
