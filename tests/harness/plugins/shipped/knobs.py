"""Each of them once, though one has two names here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class _Knob:
    name: str

    @property
    def is_knob(self) -> bool:
        return True


LOUD = _Knob("loud")
ALSO_LOUD = LOUD
SOFT = _Knob("soft")
