"""The record of a sample: one row, from the grader through the store to the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from evals.tasks.environment import Turn, turns_from_json


class SampleRow(TypedDict):
    """The record of one sample. It holds the text, so that it can be graded again."""

    task: str
    problem_id: str
    sample: int
    text: str
    n_tokens: int
    truncated: bool
    extracted: str | None
    correct: bool
    reason: str
    """The reason of the verdict that decides `correct` (see `evals.grading.Verdict`)."""
    verdicts: str
    """JSON object, grader -> correct."""
    reasons: str
    """JSON object, grader -> reason, the one that decides first."""
    faulty_steps: bool | None
    """True if a written step is wrong; None if the task does not check or no step was written."""
    turns: str | None
    """JSON list of the completion's turns (see `evals.tasks.environment.Turn`); None if no environment answers. The
    environment's words are not in the text.
    """


def turns_of(row: SampleRow) -> Sequence[Turn]:
    """Return the turns of a record's completion; none if no environment answered."""
    return () if row["turns"] is None else turns_from_json(row["turns"])
