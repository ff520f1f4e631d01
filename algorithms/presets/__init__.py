"""The presets: named points of the knob spaces, each with its source, differences in other code, and traps.

A preset is a `Preset` at the top level of a module of this folder, or of a plug-in. If a paper leaves a value open, the
preset uses the knob's default (std with divisor n - 1, 1e-6 added to it), or its text says where the value is from.
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
    """The difference from other presets, in one line."""
    source: str
    """The paper, with section or equation."""
    about: str = ""
    """A description, with the origin of values that the paper leaves open."""
    implementations: str = ""
    """How the authors' code, and well-known trainers under this name, differ from the preset."""
    traps: str = ""
    """Facts that users must know to avoid misreading a result."""
    companions: Mapping[str, str | float] = field(default_factory=dict)
    """Knobs of the run spec outside the objective -> the values that the paper uses. They are shown, never applied."""

    @property
    def family(self) -> Family:
        """The family of the objective: policy gradient or preference."""
        return family_of(self.objective)


grpo_like = partial(Objective, baseline="group_mean", scale="group_std", ratio="token")
"""Build an objective with GRPO's advantages and importance ratio, and any other knobs as arguments."""

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

    `preset("grpo", Objective)` does the same, typed as an `Objective`.
    Raises ValueError if the preset is unknown, if it does not belong to the given class, or if `with_overrides` refuses
    any of the overrides.
    """
    objective = describe(name).objective
    if family is not None and not isinstance(objective, family):
        raise InvalidError(
            "algorithms.preset_of_other_family", name=name, wanted=family.__name__, family=type(objective).__name__
        )
    return with_overrides(objective, overrides)


def describe(name: str) -> Preset:
    """Return the preset of this name. Raises ValueError if there is none."""
    return PRESETS.find(name)
