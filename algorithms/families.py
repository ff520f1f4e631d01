"""The two families of objectives, policy gradients and preferences, and the knobs of both: no name is in two."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from algorithms.objective import Objective
from algorithms.preference.objective import PreferenceObjective
from algorithms.space import descriptions

AnyObjective = Objective | PreferenceObjective
Family = Literal["policy_gradient", "preference"]

FAMILY_KNOBS: Mapping[Family, Mapping[str, str]] = MappingProxyType(
    {
        "policy_gradient": MappingProxyType(dict(descriptions(Objective))),
        "preference": MappingProxyType(dict(descriptions(PreferenceObjective))),
    }
)
"""Family -> every knob of its space, whether or not it exists at a given point, with its meaning."""

KNOB_DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {knob: meaning for knobs in FAMILY_KNOBS.values() for knob, meaning in knobs.items()}
)
"""Every knob of either family with its meaning."""

KNOB_NAMES: tuple[str, ...] = tuple(KNOB_DESCRIPTIONS)


def family_of(objective: AnyObjective) -> Family:
    """Which family an objective belongs to."""
    return "preference" if isinstance(objective, PreferenceObjective) else "policy_gradient"
