"""The interface of reward parts, the attempts and context that they receive, and the registry of all parts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar

from evals.grading import Verdict
from evals.tasks.base import Problem
from evals.tasks.environment import Turn
from harness.plugins import Kind
from harness.settings import Settings

if TYPE_CHECKING:
    from algorithms.objective import Credit, Overlong
    from evals.tasks.base import Task


@dataclass(frozen=True)
class Attempt:
    """A completion to be rewarded, with the grader's verdict on it."""

    problem: Problem
    sample: int
    """The attempt's number within its prompt's group, from 0."""
    text: str
    n_tokens: int
    """The completion's length, including the end-of-sequence token."""
    truncated: bool
    """True if the token limit was reached."""
    verdict: Verdict
    mean_logp: float
    """Mean log-prob of the completion's tokens under the sampler, in nats."""
    answer_logp: float = math.nan
    """Log-likelihood of the gold answer after the completion's reasoning, under the policy: nats, summed over tokens.
    NaN if no part needs it (`RewardPart.gold_scored_by`)."""
    perplexity_improvement: float = math.nan
    """How much the reasoning improves a frozen model's perplexity of the gold text, as a fraction of at most 1
    (2503.22828). NaN if no part needs it (`RewardPart.gold_scored_by`)."""
    scores: Mapping[str, object] = field(default_factory=dict)
    """Name of a reward part with a scoring model -> that model's score."""
    rule_verdict: Verdict | None = None
    """The verdict of the task's own grader, if `verdict` is a judge's and the task has a grader."""
    turns: Sequence[Turn] = ()
    """The model's turns, if the task has an environment. `text` excludes the environment's words. The last turn is
    graded."""


@dataclass(frozen=True)
class RewardContext:
    """Facts that all attempts of a step share."""

    step: int
    """The number of the rollout batch, from 1."""
    seed: int
    max_completion_tokens: int
    options: RewardOptions
    """The section `reward` of the spec. The options of a part are an attribute of it, e.g.
    `context.options.kimi_length.from_step`."""
    overlong: Overlong
    """The knob `objective.overlong`, or its default if the objective is on pairs."""
    credit: Credit
    """The knob `objective.credit`, or its default if the objective is on pairs."""
    task: Task


class RewardPart(Settings):
    """A part of the reward.

    The fields of a subclass are the part's options. Each is a knob `reward.<section>.<field>`, and needs a default,
    bounds and a description (pydantic's `Field`).
    """

    name: ClassVar[str] = ""
    """The part's name. The knob `reward.parts.<name>` is its weight."""
    section: ClassVar[str] = ""
    """The section of the part's options; default: its name."""
    implied_by: ClassVar[str] = ""
    """The knob that switches the part on, if `reward.parts` cannot; see `weight`."""
    scores_of: ClassVar[type[RewardPart] | None] = None
    """The `harness.config.scored.ScoredPart` whose scores this part reads from `Attempt.scores`. They are computed only
    if a part reads them."""
    gold_scored_by: ClassVar[Literal["", "policy", "generator"]] = ""
    """Set if the part depends on a completion only through the gold text's likelihood after its reasoning. Names the
    model that computes it: the policy (`Attempt.answer_logp`) or a frozen one (`Attempt.perplexity_improvement`)."""
    needs_code: ClassVar[bool] = False
    """True if the part reads more than the verdict from a grader that runs programs."""
    rewards_steps: ClassVar[bool] = False
    """True if the part rewards individual steps (see `step_rewards`). The task must then define steps."""
    rewards_turns: ClassVar[bool] = False
    """True if the part's steps are turns. The task must then have an environment, and steps end at a token count."""

    @classmethod
    def reads_one_turn(cls) -> bool:
        """Return whether a model scores the completion for this part, without seeing an environment's words."""
        return cls.scores_of is not None or bool(cls.gold_scored_by)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Check a part when it is defined. Raises TypeError if the part could not be used."""
        # `__dict__` instead of getattr, because a subclass must not inherit the section of its base class.
        cls.section = cls.__dict__.get("section") or cls.name
        if bool(cls.name) != (cls.rewards is not RewardPart.rewards):
            raise TypeError(f'{cls.__qualname__}: a reward part has a name (name = "...") and the method `rewards`')
        if cls.rewards_steps and cls.step_rewards is RewardPart.step_rewards:
            raise TypeError(f"{cls.__qualname__}: a part that rewards steps has the method `step_rewards`")
        if required := [option for option, field in cls.model_fields.items() if field.is_required()]:
            raise TypeError(f"{cls.__qualname__}: the option {required[0]} has no default: give it one")

    @classmethod
    def summary(cls) -> str:
        """Return the first paragraph of the docstring, which says what the part rewards."""
        return cls._paragraphs()[0]

    @classmethod
    def about(cls) -> str:
        """Return the other paragraphs of the docstring, one line each: formula, traps, other implementations."""
        return "\n".join(cls._paragraphs()[1:])

    @classmethod
    def _paragraphs(cls) -> list[str]:
        return [paragraph.replace("\n", " ") for paragraph in inspect.cleandoc(cls.__doc__ or "").split("\n\n")]

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        """Return a reward for each attempt at one prompt, in order. NaN means that an attempt cannot be scored."""
        raise NotImplementedError

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        """Return the part's weight in the sum.

        A weight of 0 means that the part is only measured and recorded, and None that it is not even measured.

        given: the part's weight in `reward.parts`, or None if it is not listed there.
        context: of the complete run; ignore its step and its token limit.
        """
        return given

    def step_rewards(self, attempt: Attempt, context: RewardContext) -> list[tuple[int, float]]:
        """Return (end, reward) of each step, for `objective.credit=steps`.

        The end counts characters of the text, or tokens if `rewards_turns`.
        """
        raise NotImplementedError


Part = TypeVar("Part", bound=RewardPart)


class RewardOptions(Protocol):
    """The section `reward` of a spec, as parts see it."""

    @property
    def parts(self) -> Mapping[str, float]:
        """The weight of each part, by name."""

    def of(self, part: type[Part]) -> Part:
        """Return an instance of the part with the spec's options."""


def _is_part(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, RewardPart) and bool(thing.name)


LISTED_BY = "bench ls rewards"
PARTS: Kind[type[RewardPart]] = Kind(
    "reward part",
    _is_part,
    "harness.rewards.parts",
    LISTED_BY,
    summary_of=lambda part: part.summary() + (f" Set by {part.implied_by}." if part.implied_by else ""),
    about_of=lambda part: part.about(),
    besides={"module:function": "a function of your own: (group, context) -> list of numbers"},
)


def nameable_parts() -> dict[str, type[RewardPart]]:
    """Return the parts, by name, that `reward.parts` can list. Users' functions are not included."""
    return {name: part for name, part in PARTS.all().items() if not part.implied_by}
