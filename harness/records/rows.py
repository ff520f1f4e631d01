"""The rows of a cell's records, as readers see them after the checks.

Which optional fields a row has depends on the evaluation, or on the trainer of the cell.

This module does not use postponed annotations: TypedDict would not recognise `NotRequired` in a string and would treat
the field as required.
"""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from harness.records.counted import Counted

CellState = Literal["pending", "running", "done", "failed", "invalid", "interrupted", "damaged"]


class Bin(TypedDict):
    """A bin of a reliability diagram: the samples whose confidence in their answer lies between two bounds."""

    count: int
    confidence: float | None
    correct_frac: float | None


class EvaluationRow(TypedDict):
    task: str
    metrics: dict[str, float | None]
    reliability: NotRequired[Sequence[Bin] | None]
    n_problems: NotRequired[int]
    n_samples: NotRequired[int]
    problems_by_right: NotRequired[list[int]]
    """The number of problems with 0, 1, ... correct samples; only for the model before training."""


class ScoreRow(EvaluationRow):
    step: int
    final: bool
    generated_tokens: int | None
    """The number of completion tokens sampled in training so far; None in imported records."""
    epoch: NotRequired[int]
    """The epoch of the start that wrote the row; present if rows of several starts may be mixed."""


class TimingRow(TypedDict):
    """A row of timing.jsonl: the duration of a step or of an evaluation. Further fields time the parts of a step."""

    step: NotRequired[int]
    epoch: NotRequired[int]
    total_s: NotRequired[float]
    """The duration of the step; only in the row of a step."""
    eval_s: NotRequired[float]
    """The duration of the evaluation; only in the row of an evaluation."""
    elapsed_s: NotRequired[float]
    """The time since the start began."""
    peak_memory_mb: NotRequired[float]


class Owner(TypedDict):
    host: str
    pid: int


class Start(TypedDict):
    """A row of starts.jsonl: when, where and with what a cell was trained or evaluated from a step on.

    The remaining provenance differs from run to run; `CellRecord.provenances` reads it.
    """

    epoch: int
    from_step: int
    owner: NotRequired[Owner]
    time: NotRequired[str]
    registered: NotRequired[str | None]
    """The digest of the registration that existed at the start, or None."""
    commit: NotRequired[str | None]
    packages: NotRequired[dict[str, str | None]]


class Status(TypedDict):
    """status.json of a cell, or of one of its evaluations."""

    state: CellState
    schema: NotRequired[int]
    reason: NotRequired[str | None]
    flags: NotRequired[list[str]]
    digest: NotRequired[str | None]
    """The digest of the final weights, or of the answers if the cell evaluates a checkpoint."""
    logged_steps: NotRequired[int]
    step: NotRequired[int]
    """The number of steps taken."""
    steps: NotRequired[int | None]
    """The number of steps planned."""
    generated_tokens: NotRequired[int | None]
    records: NotRequired[Counted]
    """The extents of the files of a finished cell."""
