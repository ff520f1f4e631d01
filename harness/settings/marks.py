"""What the rest of bench must know of a knob, marked at its field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["draw", "train", "evaluate", "start"]


@dataclass(frozen=True, init=False)
class Acts:
    """Marks what the knobs of a field act on; a field within a group may say otherwise.

    on: draw: which completions are drawn in training, and what they earn; train: what is learned from them, or how
    often that is watched; evaluate: how weights are evaluated, be they trained here or not; start: how completions of
    the starting weights are drawn and graded, e.g. for pass rates. any_trainer: whether they act also where a program
    of the user's own trains; others do only if it reads them.
    """

    on: frozenset[Phase]
    any_trainer: bool = False

    def __init__(self, *on: Phase, any_trainer: bool = False) -> None:
        """on: at least one."""
        object.__setattr__(self, "on", frozenset(on))
        object.__setattr__(self, "any_trainer", any_trainer)

    @property
    def only_draws(self) -> bool:
        """Whether they have no effect where nothing is drawn in training."""
        return not self.on & {"train", "evaluate"}

    @property
    def evaluates(self) -> bool:
        """Whether they have an effect where nothing is trained."""
        return "evaluate" in self.on


@dataclass(frozen=True)
class Hashed:
    """Marks how a knob enters hashes; one without this mark does by its value.

    by: content: it names what is hashed in its place; nothing: it changes no number; template, grader, pair_judge: what
    it names is hashed, and its name too unless it is the path of a file. at_default: False for a knob that is younger
    than cells that are filed already: left at its default it changes nothing.
    """

    by: Literal["value", "content", "nothing", "template", "grader", "pair_judge"] = "value"
    at_default: bool = True


@dataclass(frozen=True)
class CannotAct:
    """Marks a knob of an objective that changes no gradient in some case, whatever the others are, with the reason.

    at_ratio_one: where every importance ratio is 1, as in the first optimiser step. without_rewards: where the loss
    depends on no rewards.
    """

    at_ratio_one: str = ""
    without_rewards: str = ""


REFERS = Hashed("content")
NOT_HASHED = Hashed("nothing")
"""Another GPU needs another share of its memory for the same numbers, and what is only recorded or allowed changes
none."""
YOUNGER = Hashed(at_default=False)
