"""Reward parts that pay for what a model beside the policy says of completions, such as a reward model or a judge.

Planning asks such a part what it cannot do, what it refers to and what it holds in memory. The stage that it names
makes the model, checks data and contexts, and loads it for a cell (`harness.run.stages.Stage`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evals.grading.asked_model import Asking
from harness.rewards.base import RewardPart

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec


@dataclass(frozen=True)
class HeldModel:
    """A frozen model of the policy's shape that a cell holds, for the estimate of its memory."""

    name: str
    in_float32: bool = False
    """False if it has the policy's dtype."""
    phase: str = ""
    """The cell's activity while the model samples; "" if it samples nothing."""
    samples: int = 0
    """The number of its completions in one step."""
    tokens: int = 0
    """The length of each, with what its prompt has besides an ordinary prompt."""


class ScoredPart(RewardPart):
    """A part for which a model scores the completions of each step; the scores are in `Attempt.scores` by its name.

    Another part may read them too: it names this one as `scores_of`.
    """

    noun: ClassVar[str] = ""
    """The model in messages, with its article."""
    stage: ClassVar[str] = ""
    """The stage that makes the model, and loads it for a cell."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.name and cls.scores_of is None:
            cls.scores_of = cls

    def problems(self, spec: RunSpec) -> Iterator[str]:
        """Yield what of a spec the model cannot do, for messages before anything trains."""
        yield from ()

    def asks(self) -> dict[str, Asking]:
        """Map the knobs that name the file of a judge to the judge that is asked."""
        return {}

    def templates(self, spec: RunSpec) -> dict[str, str]:
        """Map the names under which the training hash knows the model's prompt templates to these templates."""
        return {}

    def held(self, spec: RunSpec) -> HeldModel | None:
        """Return the model that a cell holds, or None if it holds none."""
        return None

    def cannot_act(self, a: RunSpec, b: RunSpec) -> dict[str, str]:
        """Map knobs of the part in which two arms may differ without effect to the reason."""
        return {}
