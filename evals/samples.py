"""The record of a sample: one row, from the grader through the store to the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from evals.tasks.environment import Turn, turns_from_json


class SampleRow(TypedDict):
    """The record of one sample. It includes the text, so that the sample can be graded again."""

    task: str
    problem_id: str
    sample: int
    text: str
    n_tokens: int
    truncated: bool
    extracted: str | None
    correct: bool
    reason: str
    """The reason of the deciding verdict (see `evals.grading.Verdict`)."""
    verdicts: str
    """A JSON object that maps each grader to `correct`."""
    reasons: str
    """A JSON object that maps each grader to its reason, the deciding grader first."""
    faulty_steps: bool | None
    """True if a written step is wrong; None if the task does not check steps or no step was written."""
    turns: str | None
    """A JSON list of the completion's turns (see `evals.tasks.environment.Turn`); None if there is no environment. The
    environment's words are not part of the text.
    """


def turns_of(row: SampleRow) -> Sequence[Turn]:
    """Return the turns of a recorded completion, or () if there was no environment."""
    return () if row["turns"] is None else turns_from_json(row["turns"])
