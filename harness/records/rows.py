"""The rows of a cell's records, as readers see them once they were checked. Fields that may be absent depend on what
was evaluated, or on who trained the cell.

Annotations are no strings here: TypedDict would take a field for required whose `NotRequired` it cannot see.
"""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from harness.records.counted import Counted

CellState = Literal["pending", "running", "done", "failed", "invalid", "interrupted", "damaged"]


class Bin(TypedDict):
    """A bin of a reliability diagram: the samples whose answer has a confidence between two bounds."""

    count: int
    confidence: float | None
    correct_frac: float | None


class EvaluationRow(TypedDict):
    """What an evaluation found on one task. problems_by_right: of the model before training, how many problems had 0,
    1, ... right samples."""

    task: str
    metrics: dict[str, float | None]
    reliability: NotRequired[Sequence[Bin] | None]
    n_problems: NotRequired[int]
    n_samples: NotRequired[int]
    problems_by_right: NotRequired[list[int]]


class ScoreRow(EvaluationRow):
    """A row of scores.jsonl. generated_tokens: in training until then; None in imported records. epoch: of the start
    that wrote it, where rows of several may be mixed."""

    step: int
    final: bool
    generated_tokens: int | None
    epoch: NotRequired[int]


class Owner(TypedDict):
    """The process that works on a cell."""

    host: str
    pid: int


class Start(TypedDict):
    """A row of starts.jsonl: when, where and with what a cell was trained or evaluated from a step on. registered: the
    digest of the registration that the start found. The rest of the provenance depends on what was run, and is read
    by `CellRecord.provenances`."""

    epoch: int
    from_step: int
    owner: NotRequired[Owner]
    time: NotRequired[str]
    registered: NotRequired[str | None]
    commit: NotRequired[str | None]
    packages: NotRequired[dict[str, str | None]]


class Status(TypedDict):
    """status.json of a cell, or of one of its evaluations. digest: of the final weights, or of the answers. step,
    steps: taken, and to take. records: the sizes of the files that a finished cell has."""

    state: CellState
    schema: NotRequired[int]
    reason: NotRequired[str | None]
    flags: NotRequired[list[str]]
    digest: NotRequired[str | None]
    logged_steps: NotRequired[int]
    step: NotRequired[int]
    steps: NotRequired[int | None]
    generated_tokens: NotRequired[int | None]
    records: NotRequired[Counted]
