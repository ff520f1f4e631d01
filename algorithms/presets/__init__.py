"""The presets: named points of the knob spaces, each with its source, what other code does under its name, and traps.

A preset is a `Preset` at the top level of a module of this folder, or of a plug-in. Where a paper leaves a value open,
the knob's default is used (std with divisor n - 1, 1e-6 added to it), or the text says where the value comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import overload

from algorithms.objective import Objective
from algorithms.overrides import AnObjective, AnyObjective, Family, family_of, with_overrides
from harness.plugins import Kind
from harness.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named point of a knob space."""

    name: str
    objective: AnyObjective
    summary: str
    """One line: what sets it apart."""
    source: str
    """Paper, with section or equation."""
    about: str = ""
    """What it is, and where a value that the paper leaves open comes from."""
    implementations: str = ""
    """What its authors' code or well-known trainers do differently under this name."""
    traps: str = ""
    """What a user must know so as not to misread a result."""
    companions: Mapping[str, str | float] = field(default_factory=dict)
    """Settings outside the objective that the paper also uses, by knob of the run spec. Shown, never applied."""

    @property
    def family(self) -> Family:
        """Policy gradient or preference."""
        return family_of(self.objective)


grpo_like = partial(Objective, baseline="group_mean", scale="group_std", ratio="token")
"""GRPO's advantages and importance ratio; a preset names what it has besides, or instead."""

PRESETS: Kind[Preset] = Kind(
    "algorithm",
    lambda thing: isinstance(thing, Preset),
    "algorithms.presets",
    "bench ls algorithms",
    summary_of=lambda preset: f"{'from pairs: ' if preset.family == 'preference' else ''}{preset.summary}",
)


def presets(family: Family | None = None) -> tuple[str, ...]:
    """The names of all presets, or of those of one family."""
    return tuple(name for name, preset in PRESETS.all().items() if family in (None, preset.family))


@overload
def preset(name: str, /, **overrides: object) -> AnyObjective: ...
@overload
def preset(name: str, family: type[AnObjective], /, **overrides: object) -> AnObjective: ...
def preset(name: str, family: type[Settings] | None = None, /, **overrides: object) -> AnyObjective:
    """The named objective, with dotted knobs changed: `preset("grpo", **{"rule.clip_high": 0.28})`.

    `preset("grpo", Objective)` is the same, typed as an `Objective`.

    Raises ValueError for an unknown preset, for one of another family than the given class, and, naming all of them,
    for overrides that `with_overrides` refuses.
    """
    objective = describe(name).objective
    if family is not None and not isinstance(objective, family):
        raise ValueError(f"{name} is no {family.__name__} but a {type(objective).__name__}")
    return with_overrides(objective, overrides)


def describe(name: str) -> Preset:
    """The preset with its source, its differences from other code and its traps. Raises ValueError if unknown."""
    return PRESETS.find(name)
