"""The interface of samplers: a request for a completion, and its result.

No code in this package runs a model: the caller passes a sampler to an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evals.prompts import Message
from evals.tasks.base import Problem
from evals.tasks.environment import Turn
from harness.errors import InvalidError


@dataclass(frozen=True)
class Draw:
    """One completion to sample. `example` (a problem's id) and `sample` (from 0) determine its noise."""

    prompt: str | list[Message]
    example: str
    sample: int
    problem: Problem | None = None
    """The problem behind the prompt; None if the caller has no `Problem`, e.g. in lm-eval's runs."""

    def require_problem(self) -> Problem:
        """Return the problem. Raises ValueError if it is None."""
        if self.problem is None:
            raise InvalidError("evals.draw_without_problem", example=self.example)
        return self.problem


@dataclass(frozen=True)
class SamplingParams:
    """How completions are sampled."""

    max_completion_tokens: int
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means that all tokens are allowed."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, in addition to the model's end-of-sequence token."""


@dataclass(frozen=True)
class Drawn:
    """A sampled completion."""

    text: str
    """Without the end token. If a stop string ended the completion, it is included."""
    n_tokens: int
    truncated: bool
    """True if `max_completion_tokens` was reached."""
    tokens: Sequence[int] = field(default=(), compare=False, repr=False)
    """All tokens, if the sampler returns them."""
    turns: Sequence[Turn] = ()
    """The turns of a completion in an environment. The environment's words are neither in the text nor among the
    tokens.
    """


class Sampler(Protocol):
    """Samples completions.

    The same request with the same parameters gives the same completion, whatever else is sampled with it.
    """

    def draw(self, draws: Sequence[Draw], params: SamplingParams) -> list[Drawn]:
        """Return one completion for each request, in order."""


def ks_of(n: int) -> tuple[int, ...]:
    """Return the values of k for pass@k with n samples per problem: 1, 2, 4, ... up to n/2, and n itself.

    The variance of pass@k grows as k approaches n, so headline numbers use n >= 2k. k = n shows whether any sample was
    correct at all.
    """
    return tuple(sorted({1, *(2**power for power in range(n.bit_length()) if 2**power <= n / 2), n}))
