"""The grader `own`: a problem's own comparison, because several answers are correct (`Problem.own_comparison`)."""

from __future__ import annotations

from evals.grading import OWN, Grader, never_compares

_FAULT = (
    "the grader 'own' is the problem's own comparison, and this problem has none: only problems of a task whose grader "
    "is 'own' have one (`bench ls tasks`); use 'math', 'numeric' or 'exact', which compare with a reference answer"
)

own = Grader(
    OWN,
    version=1,
    meaning="the problem's own comparison, in tasks that bring one",
    compare=never_compares,
    fault=lambda answer: _FAULT,
)
