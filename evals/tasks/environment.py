"""The turns of a completion that an environment answers (see `evals.tasks.base.Environment`): replies and records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from evals.errors import EvalError


@dataclass(frozen=True)
class Reply:
    """The environment's answer to a turn.

    Raises EvalError for a reward that is not finite.
    """

    text: str
    """The model reads it before its next turn."""
    done: bool = False
    """The conversation ends, and nobody reads the text."""
    reward: float = 0.0
    """The reward of this turn, which the reward part `turns` uses."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise EvalError("evals.turn_reward_not_finite", reward=self.reward)


@dataclass(frozen=True)
class Turn:
    """A turn of a completion, as records keep it."""

    end_chars: int
    """The length of what the model had written by its end, without the environment's words."""
    end_tokens: int
    """The same length in tokens."""
    reply: str = ""
    """Empty if the turn was truncated, because the environment does not see such a turn."""
    reward: float = 0.0
    """The reward of the turn."""


class Interjection(NamedTuple):
    """The environment's words between two turns, as a model reads them."""

    after_tokens: int
    """The number of the completion's own tokens that precede it; at least one follows it."""
    tokens: Sequence[int]
    """Token ids, with those that frame a turn of a chat."""


def last_turn(text: str, turns: Sequence[Turn]) -> str:
    """Return the part of a completion that is graded: its last turn, or all of it if there are no turns."""
    return text if len(turns) < 2 else text[turns[-2].end_chars :]


def turns_as_json(turns: Sequence[Turn]) -> str:
    return json.dumps([asdict(turn) for turn in turns], ensure_ascii=False)


def turns_from_json(recorded: str) -> list[Turn]:
    """Read turns from a record. Raises ValueError or TypeError for anything but the output of `turns_as_json`."""
    return [Turn(**turn) for turn in json.loads(recorded)]
