"""What is known of a preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from algorithms.families import AnyObjective, Family, family_of


@dataclass(frozen=True)
class Preset:
    """A named point of a knob space."""

    objective: AnyObjective
    summary: str
    """One line: what sets it apart."""
    source: str
    """Paper, with section or equation."""
    about: str
    """What it is, and where a value that the paper leaves open comes from."""
    implementations: str
    """What its authors' code or well-known trainers do differently under this name."""
    traps: str
    """What a user must know so as not to misread a result."""
    companions: Mapping[str, str | float] = field(default_factory=dict)
    """Settings outside the objective that the paper also uses, by knob of the run spec. Shown, never applied."""

    @property
    def family(self) -> Family:
        """Policy gradient or preference."""
        return family_of(self.objective)
