"""The grader `own`: a problem judges its answers itself, because more than one is right (`Problem.own_comparison`)."""

from __future__ import annotations

from evals.grading import OWN, Grader, Reason

_FAULT = (
    "the grader 'own' is the problem's own comparison, and this problem has none: problems of the tasks "
    "reasoning_gym:<name> have one; use 'math', 'numeric' or 'exact', which compare with a reference answer"
)


def _never(candidate: str, answer: str) -> Reason:
    raise AssertionError("no reference is without a fault, so none is compared with")


own = Grader(
    OWN,
    version=1,
    meaning="the problem's own comparison (reasoning_gym tasks)",
    compare=_never,
    fault=lambda answer: _FAULT,
)
