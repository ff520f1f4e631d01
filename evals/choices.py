"""Problems that give choices: a model writes nothing, it chooses the text that it finds most likely.

The comparisons are those of lm-eval's metrics of the same name (`ConfigurableTask.process_results`, lm-eval 0.4.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Comparison = Literal["acc", "acc_norm", "acc_bytes", "acc_mutual_info", "greedy"]
"""How a choice is made from log-likelihoods: by each as it is, by character, by UTF-8 byte, or less the log-likelihood
without the context. greedy: there is one text, and it is chosen if greedy decoding would write it."""
COMPARISONS = tuple(name for name in get_args(Comparison) if name != "greedy")


@dataclass(frozen=True)
class Continuation:
    """A text behind a context. Without a context it stands behind the token that begins a text."""

    context: str
    text: str


@dataclass(frozen=True)
class Likelihood:
    """logp: of a continuation's tokens together, in nats. is_greedy: each of them is the most likely one there."""

    logp: float
    n_tokens: int
    is_greedy: bool


class Scorer(Protocol):
    """Knows how likely a model finds given texts."""

    def score(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """One for each continuation, in their order."""


@dataclass(frozen=True)
class Choices:
    """What a problem gives to choose from.

    texts: the C choices as records have them. continuations: of each choice, and with `acc_mutual_info` C more,
    without their context.
    """

    texts: Sequence[str]
    continuations: Sequence[Continuation]
    comparison: Comparison

    def choose(self, likelihoods: Sequence[Likelihood]) -> int | None:
        """The number of the chosen text, the first of equals; None if the only text is not chosen.

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
        # As in lm-eval an empty text is never the best of several by its length.
        return logp / length if (length := lengths[self.comparison]) else -float("inf")
