"""How knobs, their values and their ranges are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from harness.records.study import RangeRecord
from reports.formats import MISSING, number

VALUE_DIGITS = 4


def short_knobs(names: Iterable[str]) -> dict[str, str]:
    """Each dotted name by its shortest ending that no other has: `train.learning_rate` -> `learning_rate`."""
    all_names = [*names]
    return {name: _shortest_ending(name, [other for other in all_names if other != name]) for name in all_names}


def value_text(value: Any) -> str:
    """A knob's value: numbers with four digits, words as they are, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number(value, VALUE_DIGITS)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def param_text(params: dict[str, Any], knob: str) -> str:
    """The value that a trial drew, or a dash where it drew none."""
    return value_text(params[knob]) if knob in params else MISSING


def range_text(knob: RangeRecord) -> str:
    """0.0001 to 0.003 on a log scale; one of: 1, 2, 4."""
    if knob.kind == "categorical":
        return f"one of {', '.join(map(value_text, knob.choices or []))}"
    scale = {"log": " on a log scale", "int": ", whole numbers", "float": ""}[knob.kind]
    step = "" if knob.step is None else f", in steps of {number(knob.step, VALUE_DIGITS)}"
    return f"{number(knob.low, VALUE_DIGITS)} to {number(knob.high, VALUE_DIGITS)}{scale}{step}"


def condition_text(knob: RangeRecord) -> str:
    """train.updates_per_rollout is 2 or 4; always."""
    conditions = [f"{other} is {' or '.join(map(value_text, values))}" for other, values in knob.when.items()]
    return " and ".join(conditions) or "always"


def options_text(plugin: dict[str, Any]) -> str:
    """{"type": "tpe", "seed": 0} -> tpe (seed 0)."""
    options = ", ".join(f"{name} {value_text(value)}" for name, value in plugin.items() if name != "type")
    name = str(plugin.get("type", MISSING))
    return f"{name} ({options})" if options else name


def _shortest_ending(name: str, others: list[str]) -> str:
    parts = name.split(".")
    for start in reversed(range(len(parts))):
        ending = ".".join(parts[start:])
        if not any(other == ending or other.endswith(f".{ending}") for other in others):
            return ending
    return name
