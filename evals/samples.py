"""The record of a sample: one row, from the grader through the store to the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from evals.tasks.environment import Turn, turns_from_json


class SampleRow(TypedDict):
    """The record of one sample. It holds the text, so that it can be graded again.

    reason: of the verdict that decides `correct` (see `evals.grading.Verdict`).
    verdicts: JSON object, grader -> correct.
    reasons: JSON object, grader -> reason, the one that decides first.
    faulty_steps: whether a written step is wrong; None where the task does not check or no step was written.
    turns: JSON list of the completion's turns (see `evals.tasks.environment.Turn`), whose words of the environment are
        not in the text; None where no environment answers.
    """

    task: str
    problem_id: str
    sample: int
    text: str
    n_tokens: int
    truncated: bool
    extracted: str | None
    correct: bool
    reason: str
    verdicts: str
    reasons: str
    faulty_steps: bool | None
    turns: str | None


def turns_of(row: SampleRow) -> Sequence[Turn]:
    """The turns of a record's completion; none where no environment answered."""
    return () if row["turns"] is None else turns_from_json(row["turns"])
