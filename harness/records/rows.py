"""The rows of a cell's records, as readers see them once they were checked. Fields that may be absent depend on what
was evaluated, or on who trained the cell.

Annotations are no strings here: TypedDict would take a field for required whose `NotRequired` it cannot see.
"""

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
    reliability: NotRequired[list[Bin] | None]
    n_problems: NotRequired[int]
    n_samples: NotRequired[int]
    problems_by_right: NotRequired[list[int]]


class ScoreRow(EvaluationRow):
    """A row of scores.jsonl. generated_tokens: in training until then; None in imported records."""

    step: int
    final: bool
    generated_tokens: int | None


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
