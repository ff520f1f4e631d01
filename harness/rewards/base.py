"""The interface of reward parts: what a part is and what it gets; and the registry of all parts."""

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
    """Its number in the group of its prompt, from 0."""
    text: str
    n_tokens: int
    """Its length, with the end-of-sequence token."""
    truncated: bool
    """True if the limit ended it."""
    verdict: Verdict
    mean_logp: float
    """Mean log-prob of its tokens under the sampler, in nats."""
    answer_logp: float = math.nan
    """Log-likelihood of the gold answer after the completion's reasoning, under the policy, in nats, summed over
    tokens. NaN if no part needs it (`RewardPart.gold_scored_by`)."""
    perplexity_improvement: float = math.nan
    """Relative improvement of the gold text's perplexity by the reasoning, under a frozen model (2503.22828), at most
    1. NaN if no part needs it (`RewardPart.gold_scored_by`)."""
    scores: Mapping[str, object] = field(default_factory=dict)
    """Scores by models other than the policy, by the name of the reward part that has the model."""
    rule_verdict: Verdict | None = None
    """The verdict of the task's own grader, if `verdict` is a judge's and the task has a grader."""
    turns: Sequence[Turn] = ()
    """Those of a completion that an environment answers. Its words are not in the text; the last turn is graded."""


@dataclass(frozen=True)
class RewardContext:
    """What the attempts of one step have in common."""

    step: int
    """Counts rollout batches from 1."""
    seed: int
    max_completion_tokens: int
    options: RewardOptions
    """The section `reward` of the spec. The options of a part are an attribute of it, e.g.
    `context.options.kimi_length.from_step`."""
    overlong: Overlong
    """That knob of a policy-gradient objective; its default for an objective on pairs."""
    credit: Credit
    """That knob, or its default, likewise."""
    task: Task


class RewardPart(Settings):
    """A part of the reward.

    The fields of a subclass are its options, each a knob `reward.<section>.<field>`; an instance holds their values.
    Give each a default, bounds and a description: pydantic's `Field`.
    """

    name: ClassVar[str] = ""
    """The knob `reward.parts.<name>` is its weight."""
    section: ClassVar[str] = ""
    """Where its options are; by default its name."""
    implied_by: ClassVar[str] = ""
    """The knob that brings the part in, which `reward.parts` then cannot; see `weight`."""
    scores_of: ClassVar[type[RewardPart] | None] = None
    """The part whose scores in `Attempt.scores` it reads (a `harness.config.scored.ScoredPart`), so that these must be
    made."""
    gold_scored_by: ClassVar[Literal["", "policy", "generator"]] = ""
    """Set by a part that depends only on the gold text's likelihood after a completion's reasoning, to the model that
    scores it: the policy (`Attempt.answer_logp`) or a frozen one (`Attempt.perplexity_improvement`)."""
    needs_code: ClassVar[bool] = False
    """True if it reads what a grader that runs programs gives besides its verdict."""
    rewards_steps: ClassVar[bool] = False
    """True if it rewards single steps (see `step_rewards`), so that the task must say what a step is."""
    rewards_turns: ClassVar[bool] = False
    """True if its steps are turns, so that the task must have an environment; they end at a number of tokens."""

    @classmethod
    def reads_one_turn(cls) -> bool:
        """Return whether a model reads the completion for this part, without the words of an environment."""
        return cls.scores_of is not None or bool(cls.gold_scored_by)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Check a part as it is defined. Raises TypeError for a part that could not be used."""
        # `__dict__` and not getattr: a subclass must not inherit the section of its base.
        cls.section = cls.__dict__.get("section") or cls.name
        if bool(cls.name) != (cls.rewards is not RewardPart.rewards):
            raise TypeError(f'{cls.__qualname__}: a reward part has a name (name = "...") and the method `rewards`')
        if cls.rewards_steps and cls.step_rewards is RewardPart.step_rewards:
            raise TypeError(f"{cls.__qualname__}: a part that rewards steps has the method `step_rewards`")
        if required := [option for option, field in cls.model_fields.items() if field.is_required()]:
            raise TypeError(f"{cls.__qualname__}: the option {required[0]} has no default: give it one")

    @classmethod
    def summary(cls) -> str:
        """Return what it rewards: the first paragraph of its docstring."""
        return cls._paragraphs()[0]

    @classmethod
    def about(cls) -> str:
        """Return the rest of its docstring, one line per paragraph: formula, traps, what others do."""
        return "\n".join(cls._paragraphs()[1:])

    @classmethod
    def _paragraphs(cls) -> list[str]:
        return [paragraph.replace("\n", " ") for paragraph in inspect.cleandoc(cls.__doc__ or "").split("\n\n")]

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        """Return a number for each attempt at one prompt, in their order; NaN for one that cannot be scored."""
        raise NotImplementedError

    def weight(self, given: float | None, context: RewardContext) -> float | None:
        """Return the part's weight in the sum.

        given: its weight in `reward.parts`, None if it is not there. 0: it is only measured and recorded. None: not
        even that. The context is that of a whole run: its step and its limit do not count.
        """
        return given

    def step_rewards(self, attempt: Attempt, context: RewardContext) -> list[tuple[int, float]]:
        """Return each step's end and its reward, for `objective.credit=steps`.

        The end is a number of characters of the text, or of tokens if the step is a turn.
        """
        raise NotImplementedError


Part = TypeVar("Part", bound=RewardPart)


class RewardOptions(Protocol):
    """The section `reward` of a spec, as far as parts read it."""

    @property
    def parts(self) -> Mapping[str, float]:
        """The weights."""

    def of(self, part: type[Part]) -> Part:
        """Return the part with its options."""


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
    """Return the parts that `reward.parts` can name, besides functions of the user's own."""
    return {name: part for name, part in PARTS.all().items() if not part.implied_by}
