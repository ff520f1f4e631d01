"""How long completions are: of all samples, of the right ones and of the wrong ones."""

from __future__ import annotations

from evals.metrics import Metric, Samples, mean


def _mean_tokens(samples: Samples) -> float | None:
    return mean(row["n_tokens"] for row in samples.rows)


def _mean_tokens_correct(samples: Samples) -> float | None:
    return mean(row["n_tokens"] for row in samples.rows if row["correct"])


def _mean_tokens_incorrect(samples: Samples) -> float | None:
    return mean(row["n_tokens"] for row in samples.rows if not row["correct"])


MEAN_TOKENS = Metric("mean_tokens", "mean length of completions", "tokens", "less", _mean_tokens)
MEAN_TOKENS_CORRECT = Metric(
    "mean_tokens_correct", "mean length of right completions", "tokens", "less", _mean_tokens_correct
)
MEAN_TOKENS_INCORRECT = Metric(
    "mean_tokens_incorrect", "mean length of wrong completions", "tokens", "less", _mean_tokens_incorrect
)
