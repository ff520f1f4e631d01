"""Multiple-choice problems in which the model writes nothing: its answer is the text with the highest likelihood.

The comparisons match lm-eval's metrics of the same names (`ConfigurableTask.process_results`, lm-eval 0.4.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Comparison = Literal["acc", "acc_norm", "acc_bytes", "acc_mutual_info", "greedy"]
"""How log-likelihoods select a choice.

acc: unchanged. acc_norm: per character. acc_bytes: per UTF-8 byte. acc_mutual_info: minus the log-likelihood without
the context. greedy: there is a single text, and it is chosen if greedy decoding would write it.
"""
COMPARISONS = tuple(name for name in get_args(Comparison) if name != "greedy")


@dataclass(frozen=True)
class Continuation:
    """A text that follows a context. If there is no context, it follows the beginning-of-text token."""

    context: str
    text: str


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a continuation under a model."""

    logp: float
    """The log-prob summed over its tokens, in nats."""
    n_tokens: int
    is_greedy: bool
    """True if each token is the most likely one at its position."""


class Scorer(Protocol):
    """Computes the likelihood of texts under a model."""

    def score(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """Return one likelihood for each continuation, in order."""


@dataclass(frozen=True)
class Choices:
    """The choices of a problem."""

    texts: Sequence[str]
    """The C choices, as they are recorded."""
    continuations: Sequence[Continuation]
    """One for each choice. With `acc_mutual_info`, C more follow: the same texts without their contexts."""
    comparison: Comparison

    def choose(self, likelihoods: Sequence[Likelihood]) -> int | None:
        """Return the index of the chosen text, or None if a single text is not chosen. In a tie, the first text wins.

        likelihoods: those of the continuations, in order.
        """
        if self.comparison == "greedy":
            return 0 if likelihoods[0].is_greedy else None
        values = [self._value(number, likelihoods) for number in range(len(self.texts))]
        return values.index(max(values))

    def _value(self, number: int, likelihoods: Sequence[Likelihood]) -> float:
        logp, text = likelihoods[number].logp, self.texts[number]
        if self.comparison == "acc_mutual_info":
            return logp - likelihoods[len(self.texts) + number].logp
        lengths = {"acc": 1, "acc_norm": len(text), "acc_bytes": len(text.encode())}
        # As in lm-eval, an empty text never wins a comparison by length.
        return logp / length if (length := lengths[self.comparison]) else -float("inf")
