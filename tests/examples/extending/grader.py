"""A grader: a number within 1% of the reference is right. `eval.grader: within_1_percent` evaluates by it."""

from __future__ import annotations

from evals.grading import Grader, Reason
from evals.grading.numeric import parse_number

TOLERANCE = 0.01


def compare(candidate: str, reference: str) -> Reason:
    """Compare an extracted answer with the reference. `unparsed`: the answer cannot be read."""
    value, wanted = parse_number(candidate), parse_number(reference)
    if value is None or wanted is None:
        return "unparsed"
    return "match" if abs(value - wanted) <= TOLERANCE * abs(wanted) else "mismatch"


def fault(reference: str) -> str | None:
    """Return what is wrong with a reference and what to do, or None. Called before anything is sampled."""
    if parse_number(reference) is not None:
        return None
    return f"the reference answer {reference!r} is not a number: use the grader 'math' or 'exact' for this task"


within_1_percent = Grader(
    name="within_1_percent",
    version=1,
    meaning="a number within 1% of the reference",
    compare=compare,
    fault=fault,
)
