"""Reward parts for which a model other than the policy scores completions, such as a reward model or a judge.

Before training, planning asks such a part what it cannot do, what it refers to and what it holds in memory. The stage
that the part names creates the model, checks data and contexts, and loads the model for a cell
(`harness.run.stages.Stage`).
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
    """A frozen model, of the same size as the policy, that a cell holds; used to estimate the cell's memory."""

    name: str
    in_float32: bool = False
    """True if the model is in float32. Otherwise it has the policy's dtype."""
    phase: str = ""
    """The cell's activity while this model samples, or "" if it does not sample."""
    samples: int = 0
    """The number of completions that it samples in one step."""
    tokens: int = 0
    """The most tokens of each completion, plus the tokens that its prompt has beyond an ordinary prompt."""


class ScoredPart(RewardPart):
    """A part for which a model scores the completions of each step.

    The scores are in `Attempt.scores` under the part's name. Another part can use them by naming this part as its
    `scores_of`.
    """

    noun: ClassVar[str] = ""
    """The model's name in messages, with its article."""
    stage: ClassVar[str] = ""
    """The stage that creates the model and loads it for a cell."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.name and cls.scores_of is None:
            cls.scores_of = cls

    def problems(self, spec: RunSpec) -> Iterator[str]:
        """Yield the settings of a spec that the model does not support, as messages to show before training."""
        yield from ()

    def asks(self) -> dict[str, Asking]:
        """Map each knob that names a judge's file to that judge."""
        return {}

    def templates(self, spec: RunSpec) -> dict[str, str]:
        """Map the names in the training hash to the model's prompt templates."""
        return {}

    def held(self, spec: RunSpec) -> HeldModel | None:
        """Return the model that a cell holds in memory, or None if it holds none."""
        return None

    def cannot_act(self, a: RunSpec, b: RunSpec) -> dict[str, str]:
        """Map each knob of this part that cannot have an effect in arms `a` and `b` to the reason."""
        return {}
