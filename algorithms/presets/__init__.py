"""The presets: named points of the knob spaces, each with its source, the behaviour of other code, and traps.

A preset is a `Preset` at the top level of a module of this folder, or of a plug-in. A value that a paper leaves open is
the knob's default (std with divisor n - 1, 1e-6 added to it), or the text gives its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import overload

from algorithms.objective import Objective
from algorithms.overrides import AnObjective, AnyObjective, Family, family_of, with_overrides
from harness.errors import InvalidError
from harness.plugins import Kind
from harness.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named point of a knob space."""

    name: str
    objective: AnyObjective
    summary: str
    """Its distinguishing feature, in one line."""
    source: str
    """The paper, with section or equation."""
    about: str = ""
    """A description, with the origin of values that the paper leaves open."""
    implementations: str = ""
    """Differences of its authors' code or of well-known trainers under this name."""
    traps: str = ""
    """Facts that a user must know so as not to misread a result."""
    companions: Mapping[str, str | float] = field(default_factory=dict)
    """Settings outside the objective that the paper also uses, by knob of the run spec. Shown, never applied."""

    @property
    def family(self) -> Family:
        """The family of the objective: policy gradient or preference."""
        return family_of(self.objective)


grpo_like = partial(Objective, baseline="group_mean", scale="group_std", ratio="token")
"""GRPO's advantages and importance ratio; a preset passes its other knobs, or other values of these."""

PRESETS: Kind[Preset] = Kind(
    "algorithm",
    lambda thing: isinstance(thing, Preset),
    "algorithms.presets",
    "bench ls algorithms",
    summary_of=lambda preset: f"{'from pairs: ' if preset.family == 'preference' else ''}{preset.summary}",
)


def presets(family: Family | None = None) -> tuple[str, ...]:
    """Return the names of all presets, or of the presets of one family."""
    return tuple(name for name, preset in PRESETS.all().items() if family in (None, preset.family))


@overload
def preset(name: str, /, **overrides: object) -> AnyObjective: ...
@overload
def preset(name: str, family: type[AnObjective], /, **overrides: object) -> AnObjective: ...
def preset(name: str, family: type[Settings] | None = None, /, **overrides: object) -> AnyObjective:
    """Return the named objective, with dotted knobs changed: `preset("grpo", **{"rule.clip_high": 0.28})`.

    `preset("grpo", Objective)` is the same, typed as an `Objective`.

    Raises ValueError for an unknown preset, for a preset of another family than the given class, and for overrides that
    `with_overrides` refuses, naming all of them.
    """
    objective = describe(name).objective
    if family is not None and not isinstance(objective, family):
        raise InvalidError(
            "algorithms.preset_of_other_family", name=name, wanted=family.__name__, family=type(objective).__name__
        )
    return with_overrides(objective, overrides)


def describe(name: str) -> Preset:
    """Return the preset with its source, its differences from other code and its traps.

    Raises ValueError if it is unknown.
    """
    return PRESETS.find(name)
