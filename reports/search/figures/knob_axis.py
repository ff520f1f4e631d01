"""The range of a knob as positions from 0 to 1: equal steps, equal ratios where it is drawn on a log scale, or places
for choices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.records.study import RangeRecord
from reports.search.knobs import value_text

CHOICE_CENTRE = 0.5


@dataclass(frozen=True)
class KnobAxis:
    """`low`, `high` in the scale's own unit; `choices`: those of a categorical knob as JSON, else none. `choice_at`:
    where in its part of the axis a choice lies."""

    kind: str
    low: float
    high: float
    choices: tuple[str, ...]
    choice_at: float

    @classmethod
    def of(cls, knob: RangeRecord, values: Iterable[Any], choice_at: float = CHOICE_CENTRE) -> KnobAxis:
        """The axis of a knob. values: what trials drew; the default may lie outside of what is searched."""
        if knob.kind == "categorical":
            choices = dict.fromkeys(_json(value) for value in [*(knob.choices or []), *values])
            return cls(knob.kind, 0.0, 1.0, tuple(choices), choice_at)
        is_log = knob.kind == "log"
        ends = [float(end) for end in (knob.low, knob.high, *values) if end is not None and (end > 0 or not is_log)]
        scaled = [math.log(end) if is_log else end for end in ends]
        return cls(knob.kind, min(scaled), max(scaled), (), choice_at)

    def position(self, value: Any) -> float:
        """From 0 to 1. What is not positive has no place on a log scale and lies at its low end."""
        if self.choices:
            return (self.choices.index(_json(value)) + self.choice_at) / len(self.choices)
        if self.high == self.low:
            return CHOICE_CENTRE
        if self.kind != "log":
            return (float(value) - self.low) / (self.high - self.low)
        return (math.log(value) - self.low) / (self.high - self.low) if value > 0 else 0.0

    def ticks(self, n: int) -> list[tuple[float, str]]:
        """Positions and what they say: every choice, or so many values between the ends."""
        if self.choices:
            values = [json.loads(choice) for choice in self.choices]
        else:
            values = [self._value(self.low + i * (self.high - self.low) / (n - 1)) for i in range(n)]
            values = list(dict.fromkeys(values))
        return [(self.position(value), value_text(value)) for value in values]

    def _value(self, scaled: float) -> float:
        value = math.exp(scaled) if self.kind == "log" else scaled
        return round(value) if self.kind == "int" else float(f"{value:.2g}")


def _json(value: Any) -> str:
    """Unlike the values themselves, true and 1 differ."""
    return json.dumps(value, sort_keys=True)
