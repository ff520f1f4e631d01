"""What is wrong with samples besides their answer: cut off, not readable, not graded, or right by faulty steps."""

from __future__ import annotations

from evals.metrics import Metric, Samples, mean


def _truncated(samples: Samples) -> float | None:
    return mean(row["truncated"] for row in samples.rows)


def _unparsed(samples: Samples) -> float | None:
    return mean(row["reason"] == "unparsed" for row in samples.rows)


def _ungraded(samples: Samples) -> float | None:
    return mean(row["reason"] in {"timeout", "crash"} for row in samples.rows)


def _faulty_steps(samples: Samples) -> float | None:
    checked = ((row["correct"], row["faulty_steps"]) for row in samples.rows)
    return mean(faulty for correct, faulty in checked if correct and faulty is not None)


TRUNCATED = Metric("truncated_frac", "samples that the token limit cut off", "fraction", "less", _truncated)
UNPARSED = Metric("unparsed_frac", "samples without an answer that the grader can read", "fraction", "less", _unparsed)
UNGRADED = Metric("ungraded_frac", "samples whose grading timed out or crashed", "fraction", "less", _ungraded)
FAULTY_STEPS = Metric(
    "faulty_steps_frac",
    "right samples with a faulty step, of those whose steps were checked",
    "fraction",
    "less",
    _faulty_steps,
)
