"""How completions are drawn: what a sampler is asked for and gives back.

Nothing in this package runs a model: an evaluation is handed a sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evals.prompts import Message
from evals.tasks.base import Problem
from evals.tasks.environment import Turn


@dataclass(frozen=True)
class Draw:
    """One completion to be drawn. `example` (a problem's id) and `sample` (from 0) name its noise. problem: which is
    asked; None where whoever draws has no `Problem` of it, as lm-eval has not."""

    prompt: str | list[Message]
    example: str
    sample: int
    problem: Problem | None = None

    def require_problem(self) -> Problem:
        """The problem. Raises ValueError without one."""
        if self.problem is None:
            raise ValueError(f"{self.example}: is drawn without its problem, by which it is graded or answered")
        return self.problem


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn. temperature: 0 is greedy. top_k: 0 is off. stop: strings that end a completion,
    besides the model's end-of-sequence token."""

    max_completion_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A completion. text: without the end token, but with the stop string that ended it, if one did. truncated: ended
    by `max_completion_tokens`. tokens: all of them, from samplers that tell. turns: those of a completion that an
    environment answers, whose words are neither in the text nor among the tokens."""

    text: str
    n_tokens: int
    truncated: bool
    tokens: Sequence[int] = field(default=(), compare=False, repr=False)
    turns: Sequence[Turn] = ()


class Sampler(Protocol):
    """Draws completions. The same draw with the same parameters gives the same completion, whatever else is drawn
    beside it."""

    def draw(self, draws: Sequence[Draw], params: SamplingParams) -> list[Drawn]:
        """One completion for each draw, in their order."""


def ks_of(n: int) -> tuple[int, ...]:
    """The k of pass@k for n samples per problem: 1, 2, 4, ... up to n/2, and n itself.

    The variance of pass@k grows as k nears n, so a headline has n >= 2k; k = n says whether any sample at all was
    right.
    """
    return tuple(sorted({1, *(2**power for power in range(n.bit_length()) if 2**power <= n / 2), n}))
