"""Turns of a completion to which an environment replies (see `evals.tasks.base.Environment`): replies and records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from evals.errors import EvalError


@dataclass(frozen=True)
class Reply:
    """The environment's reply to a turn. Raises EvalError for a reward that is not finite."""

    text: str
    """The text that the model reads before its next turn."""
    done: bool = False
    """True if the conversation ends, so that the text is not read."""
    reward: float = 0.0
    """The reward of this turn, which the reward part `turns` uses."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise EvalError("evals.turn_reward_not_finite", reward=self.reward)


@dataclass(frozen=True)
class Turn:
    """A turn of a completion, as it is recorded."""

    end_chars: int
    """The number of characters that the model had written by the end of the turn, not counting the environment's words.
    """
    end_tokens: int
    """The same position in tokens."""
    reply: str = ""
    """The environment's reply; "" if the turn was truncated, because the environment does not see truncated turns."""
    reward: float = 0.0
    """The reward of the turn."""


class Interjection(NamedTuple):
    """The environment's words between two turns, as the model reads them."""

    after_tokens: int
    """The number of the completion's own tokens that precede them; at least one follows."""
    tokens: Sequence[int]
    """Token ids, including those that frame a chat turn."""


def last_turn(text: str, turns: Sequence[Turn]) -> str:
    """Return the last turn of a completion, which is what is graded; all of it if there are fewer than two turns."""
    return text if len(turns) < 2 else text[turns[-2].end_chars :]


def turns_as_json(turns: Sequence[Turn]) -> str:
    return json.dumps([asdict(turn) for turn in turns], ensure_ascii=False)


def turns_from_json(recorded: str) -> list[Turn]:
    """Read turns from a record. Raises ValueError or TypeError for anything that `turns_as_json` did not write."""
    return [Turn(**turn) for turn in json.loads(recorded)]
