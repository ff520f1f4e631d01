"""Properties of completions other than correctness: length, truncation, missing verdicts, faulty steps."""

from __future__ import annotations

from evals.grading import NO_VERDICT
from evals.metrics import Metric, Samples, mean


def _truncated(samples: Samples) -> float | None:
    return mean(row["truncated"] for row in samples.rows)


def _unparsed(samples: Samples) -> float | None:
    return mean(row["reason"] == "unparsed" for row in samples.rows)


def _ungraded(samples: Samples) -> float | None:
    return mean(row["reason"] in NO_VERDICT for row in samples.rows)


def _faulty_steps(samples: Samples) -> float | None:
    checked = ((row["correct"], row["faulty_steps"]) for row in samples.rows)
    return mean(faulty for correct, faulty in checked if correct and faulty is not None)


def _mean_tokens(samples: Samples) -> float | None:
    return mean(row["n_tokens"] for row in samples.rows)


def _mean_tokens_correct(samples: Samples) -> float | None:
    return mean(row["n_tokens"] for row in samples.rows if row["correct"])


def _mean_tokens_incorrect(samples: Samples) -> float | None:
    return mean(row["n_tokens"] for row in samples.rows if not row["correct"])


TRUNCATED = Metric("truncated_frac", "samples that the token limit cut off", "fraction", "less", _truncated)
UNPARSED = Metric("unparsed_frac", "samples without an answer that the grader can read", "fraction", "less", _unparsed)
UNGRADED = Metric(
    "ungraded_frac",
    "samples without a verdict: grading timed out or crashed, or the judge's reply was not readable",
    "fraction",
    "less",
    _ungraded,
)
FAULTY_STEPS = Metric(
    "faulty_steps_frac",
    "right samples with a faulty step, of those whose steps were checked",
    "fraction",
    "less",
    _faulty_steps,
)
MEAN_TOKENS = Metric("mean_tokens", "mean length of completions", "tokens", "less", _mean_tokens)
MEAN_TOKENS_CORRECT = Metric(
    "mean_tokens_correct", "mean length of right completions", "tokens", "less", _mean_tokens_correct
)
MEAN_TOKENS_INCORRECT = Metric(
    "mean_tokens_incorrect", "mean length of wrong completions", "tokens", "less", _mean_tokens_incorrect
)
