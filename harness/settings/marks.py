"""Markers of knobs for the rest of bench."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["draw", "train", "evaluate", "start"]


@dataclass(frozen=True, init=False)
class Acts:
    """Marks what a knob, or all knobs of a section, affect. A field within a section may have its own mark."""

    on: frozenset[Phase]
    """draw: which completions are sampled in training, and their rewards. train: the updates made with them, or how
    often training is evaluated. evaluate: how weights are evaluated, whether or not they were trained here. start:
    how completions of the starting weights are sampled and graded, e.g. for pass rates.
    """
    any_trainer: bool = False
    """True if the knobs also have an effect if a program of the user trains. Other knobs then have one only if the
    program reads them.
    """

    def __init__(self, *on: Phase, any_trainer: bool = False) -> None:
        # A frozen dataclass does not allow assignment, even in its constructor.
        object.__setattr__(self, "on", frozenset(on))
        object.__setattr__(self, "any_trainer", any_trainer)

    @property
    def only_draws(self) -> bool:
        """True if the knobs have no effect if nothing is sampled in training."""
        return not self.on & {"train", "evaluate"}

    @property
    def evaluates(self) -> bool:
        """True if the knobs have an effect if nothing is trained."""
        return "evaluate" in self.on


@dataclass(frozen=True)
class Hashed:
    """Marks how a knob enters hashes. A knob without this mark enters by its value."""

    by: Literal["value", "content", "nothing", "template", "grader", "judge"] = "value"
    """content: the content that the knob names is hashed instead of the name. nothing: the knob is not hashed, because
    it changes no number. template, grader, judge: the content is hashed, and also the name, unless it is the path of
    a file.
    """
    at_default: bool = True
    """True if the knob is hashed even at its default. False for a knob that was added when cells existed already, so
    that their hashes stay the same.
    """


@dataclass(frozen=True)
class CannotAct:
    """Marks a knob of an objective that in some case changes no gradient, whatever the other knobs are."""

    at_ratio_one: str = ""
    """The reason if every importance ratio is 1, as in the first optimiser step."""
    without_rewards: str = ""
    """The reason if the loss does not depend on rewards."""


REFERS = Hashed("content")
NOT_HASHED = Hashed("nothing")
"""For knobs that change no number: the engine's share of a GPU's memory, permissions, and what is recorded."""
YOUNGER = Hashed(at_default=False)
