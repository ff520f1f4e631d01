"""The grader `exact`, which compares text."""

from __future__ import annotations

from evals.grading import Grader, Reason, bare, normalise


def compare_exact(candidate: str, answer: str) -> Reason:
    """Compare as text, ignoring mark-up, invisible characters and look-alikes."""
    return "match" if candidate == bare(normalise(answer)) else "mismatch"


exact = Grader("exact", version=3, meaning="equal as text", compare=compare_exact)
