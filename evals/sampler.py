"""The interface of samplers: the request for a completion and its result.

Nothing in this package runs a model: the caller passes a sampler to an evaluation.
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
    """One completion to be sampled. `example` (a problem's id) and `sample` (from 0) name its noise."""

    prompt: str | list[Message]
    example: str
    sample: int
    problem: Problem | None = None
    """The problem of the prompt; None if the caller has no `Problem`, as lm-eval does not."""

    def require_problem(self) -> Problem:
        """Return the problem. Raises ValueError without one."""
        if self.problem is None:
            raise InvalidError("evals.draw_without_problem", example=self.example)
        return self.problem


@dataclass(frozen=True)
class SamplingParams:
    """The settings of sampling."""

    max_completion_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, in addition to the model's end-of-sequence token."""


@dataclass(frozen=True)
class Drawn:
    """A completion."""

    text: str
    """Without the end token, but with the stop string that ended it, if one did."""
    n_tokens: int
    truncated: bool
    """Ended by `max_completion_tokens`."""
    tokens: Sequence[int] = field(default=(), compare=False, repr=False)
    """All of them, from samplers that return them."""
    turns: Sequence[Turn] = ()
    """The turns of a completion that an environment answers, whose words are neither in the text nor among the
    tokens.
    """


class Sampler(Protocol):
    """Samples completions.

    The same draw with the same parameters gives the same completion, whatever else is sampled with it.
    """

    def draw(self, draws: Sequence[Draw], params: SamplingParams) -> list[Drawn]:
        """Return one completion for each draw, in their order."""


def ks_of(n: int) -> tuple[int, ...]:
    """Return the k of pass@k for n samples per problem: 1, 2, 4, ... up to n/2, and n itself.

    The variance of pass@k grows as k nears n, so a headline has n >= 2k. k = n shows whether any sample at all was
    right.
    """
    return tuple(sorted({1, *(2**power for power in range(n.bit_length()) if 2**power <= n / 2), n}))
