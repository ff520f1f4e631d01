"""Multiple-choice problems: the model writes nothing; the text with the highest likelihood is its answer.

The comparisons are those of lm-eval's metrics of the same name (`ConfigurableTask.process_results`, lm-eval 0.4.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Comparison = Literal["acc", "acc_norm", "acc_bytes", "acc_mutual_info", "greedy"]
"""The way in which log-likelihoods select a choice.

acc: as they are. acc_norm: per character. acc_bytes: per UTF-8 byte. acc_mutual_info: minus the log-likelihood
without the context. greedy: there is one text, and it is chosen if greedy decoding would write it.
"""
COMPARISONS = tuple(name for name in get_args(Comparison) if name != "greedy")


@dataclass(frozen=True)
class Continuation:
    """A text that follows a context. Without a context, it follows the token that begins a text."""

    context: str
    text: str


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of a continuation."""

    logp: float
    """Summed over its tokens, in nats."""
    n_tokens: int
    is_greedy: bool
    """Each token is the most likely one at its position."""


class Scorer(Protocol):
    """Computes the likelihood of texts under a model."""

    def score(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """Return one likelihood for each continuation, in their order."""


@dataclass(frozen=True)
class Choices:
    """The choices of a problem."""

    texts: Sequence[str]
    """The C choices as records have them."""
    continuations: Sequence[Continuation]
    """One of each choice, and with `acc_mutual_info` C more, without their context."""
    comparison: Comparison

    def choose(self, likelihoods: Sequence[Likelihood]) -> int | None:
        """Return the index of the chosen text, the first of equals; None if the only text is not chosen.

        likelihoods: of the continuations, in their order.
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
