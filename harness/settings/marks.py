"""Marks at the field of a knob, with what the rest of bench must know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["draw", "train", "evaluate", "start"]


@dataclass(frozen=True, init=False)
class Acts:
    """Marks what the knobs of a field act on; a field within a group may have a mark of its own."""

    on: frozenset[Phase]
    """draw: which completions are sampled in training, and their rewards. train: the updates made with them, or how
    often that is watched. evaluate: how weights are evaluated, whether they were trained here or not. start: how
    completions of the starting weights are sampled and graded, e.g. for pass rates."""
    any_trainer: bool = False
    """True if they also act when a program of the user's own trains. The others act then only if the program reads
    them."""

    def __init__(self, *on: Phase, any_trainer: bool = False) -> None:
        """Mark at least one phase."""
        # A frozen dataclass refuses plain assignment, even in its own constructor.
        object.__setattr__(self, "on", frozenset(on))
        object.__setattr__(self, "any_trainer", any_trainer)

    @property
    def only_draws(self) -> bool:
        """True if they have no effect when nothing is sampled in training."""
        return not self.on & {"train", "evaluate"}

    @property
    def evaluates(self) -> bool:
        """True if they have an effect when nothing is trained."""
        return "evaluate" in self.on


@dataclass(frozen=True)
class Hashed:
    """Marks how a knob enters hashes; a knob without this mark enters by its value."""

    by: Literal["value", "content", "nothing", "template", "grader", "judge"] = "value"
    """content: what the knob names is hashed in its place. nothing: the knob changes no number. template, grader,
    judge: what it names is hashed, and so is its name, unless it is the path of a file."""
    at_default: bool = True
    """False for a knob that is younger than cells which are filed already: at its default it leaves their hashes
    unchanged."""


@dataclass(frozen=True)
class CannotAct:
    """Marks a knob of an objective that in some case changes no gradient, whatever the others are, with the reason."""

    at_ratio_one: str = ""
    """The reason if every importance ratio is 1, as in the first optimiser step."""
    without_rewards: str = ""
    """The reason if the loss depends on no rewards."""


REFERS = Hashed("content")
NOT_HASHED = Hashed("nothing")
"""For knobs that change no number, such as the engine's share of a GPU's memory, or what is only recorded or
allowed."""
YOUNGER = Hashed(at_default=False)
