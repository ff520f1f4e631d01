"""Environments: tasks in which a completion has several turns. The model ends its turn, the environment answers with
text, and the model goes on with both before its eyes.

A reply follows from the problem and from what the model has said. So no state has to be kept, and a resumed cell gets
the same replies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from evals.errors import EvalError

if TYPE_CHECKING:
    from evals.tasks.base import Problem


@dataclass(frozen=True)
class Reply:
    """What the environment answers to a turn.

    text: what the model reads before its next turn. done: the conversation ends, and nobody reads the text.
    reward: of this turn; the reward part `turns` uses it.

    Raises EvalError for a reward that is not finite.
    """

    text: str
    done: bool = False
    reward: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise EvalError(f"an environment gave the reward {self.reward} for a turn: give a finite number")


@dataclass(frozen=True)
class Environment:
    """What answers the turns of a task's completions.

    reply: (problem, what the model has said in each of its turns so far) -> the answer to the last of them. It must
        depend on nothing else: samples are drawn again and are expected to be the same.
    max_turns: after so many the conversation ends. Evaluation gives as many; training too, unless `rollout.max_turns`
        says otherwise.
    version: raise it whenever replies or rewards change; it is part of a run's semantic hash.

    Raises EvalError for less than one turn.
    """

    reply: Callable[[Problem, Sequence[str]], Reply]
    max_turns: int
    version: int = 1

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise EvalError(f"an environment has max_turns={self.max_turns}: give at least 1")

    def answer(self, problem: Problem, said: Sequence[str]) -> Reply:
        """The reply to the last of these turns. Raises EvalError if the task's function gives something else."""
        answered = self.reply(problem, said)
        if not isinstance(answered, Reply):
            raise EvalError(
                f"the environment gave {answered!r} to a turn on the problem {problem.id}: give a Reply "
                "(evals.tasks.environment)"
            )
        return answered

    @property
    def identity(self) -> dict[str, int]:
        """What its replies depend on besides the problem and the model's words."""
        return {"version": self.version, "max_turns": self.max_turns}


@dataclass(frozen=True)
class Turn:
    """A turn of a completion, as records keep it.

    end_chars, end_tokens: how much of the completion the model had written by its end; the environment's words are not
        counted. reply: empty where the turn was cut, which the environment does not see. reward: of the turn.
    """

    end_chars: int
    end_tokens: int
    reply: str = ""
    reward: float = 0.0


class Interjection(NamedTuple):
    """What an environment said between two turns, as a model reads it."""

    after_tokens: int
    """How many of the completion's own tokens stand before it; at least one stands behind it."""
    tokens: Sequence[int]
    """Token ids, with those that frame a turn of a chat."""


def last_turn(text: str, turns: Sequence[Turn]) -> str:
    """What of a completion is graded: its last turn, or all of it where there are no turns."""
    return text if len(turns) < 2 else text[turns[-2].end_chars :]


def turns_as_json(turns: Sequence[Turn]) -> str:
    return json.dumps([asdict(turn) for turn in turns], ensure_ascii=False)


def turns_from_json(recorded: str) -> list[Turn]:
    """Raises ValueError or TypeError for anything but what `turns_as_json` writes."""
    return [Turn(**turn) for turn in json.loads(recorded)]
