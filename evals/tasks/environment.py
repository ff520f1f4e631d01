"""The turns of a completion that an environment answers (see `evals.tasks.base.Environment`): what it replies, and how
records keep them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from evals.errors import EvalError


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
