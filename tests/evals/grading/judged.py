"""Verdicts on answers that are extracted already."""

from __future__ import annotations

from evals.graders import get_grader
from evals.grading import OwnComparison, Submission, Verdict


def judge(extracted: str | None, answer: str, grader: str, own: OwnComparison | None = None) -> Verdict:
    (verdict,) = get_grader(grader).verdicts([Submission("", answer, "", extracted, own)])
    return verdict
