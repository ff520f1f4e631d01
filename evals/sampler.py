"""How completions are drawn: what a sampler is asked for and gives back, and the conventions that papers report by.

Nothing in this package runs a model: an evaluation is handed a sampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evals.errors import EvalError
from evals.prompts import Message
from evals.tasks.base import Problem
from evals.tasks.environment import Turn
from harness.errors import few, nearest


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


@dataclass(frozen=True)
class SamplingPreset:
    """A named convention: how completions are drawn in an evaluation, and how many.

    samples: completions a problem, unless `samples_by_task` names the task.
    """

    name: str
    temperature: float
    top_p: float
    max_completion_tokens: int
    samples: int = 1
    samples_by_task: Mapping[str, int] = field(default_factory=dict, hash=False)

    def samples_of(self, task_name: str) -> int:
        """Completions a problem of that task."""
        return self.samples_by_task.get(task_name, self.samples)


PRESETS = {
    preset.name: preset
    for preset in (
        # DeepSeek-R1's README: pass@1 and cons@64 from 64 samples per problem of AIME. It does not state the number for
        # MATH-500; open-r1 takes 4 (pull request 633). `math` is evaluated on MATH-500 too.
        SamplingPreset(
            "r1",
            temperature=0.6,
            top_p=0.95,
            max_completion_tokens=32_768,
            samples_by_task={"aime24": 64, "aime25": 64, "amc23": 64, "math500": 4, "math": 4},
        ),
        # DAPO reports avg@32, cons@32 and pass@32 (BytedTsinghua-SIA/DAPO, issue 5) and evaluates at top-p 0.7 (its
        # script in verl, `val_top_p`). The 20,480 tokens are from memory, not checked against a source.
        SamplingPreset("dapo", temperature=1.0, top_p=0.7, max_completion_tokens=20_480, samples=32),
        # The most likely tokens, once: as Dr. GRPO, Qwen2.5-Math and lm-eval evaluate. The length is that of lm-eval's
        # aime tasks; Dr. GRPO's is 3,000.
        SamplingPreset("greedy", temperature=0.0, top_p=1.0, max_completion_tokens=32_768),
    )
}


def get_preset(name: str) -> SamplingPreset:
    """The preset of that name. Raises EvalError for an unknown one."""
    if name not in PRESETS:
        raise EvalError(f"unknown sampling preset {name!r}{nearest(name, PRESETS)} There are {few(PRESETS)}.")
    return PRESETS[name]


def ks_of(n: int) -> tuple[int, ...]:
    """The k of pass@k for n samples per problem: 1, 2, 4, ... up to n/2, and n itself.

    The variance of pass@k grows as k nears n, so a headline has n >= 2k; k = n says whether any sample at all was
    right.
    """
    return tuple(sorted({1, *(2**power for power in range(n.bit_length()) if 2**power <= n / 2), n}))
