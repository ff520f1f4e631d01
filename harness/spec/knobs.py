"""The knobs of a run spec by dotted name: all there are, those active in a spec, and who governs whether one exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel

from algorithms import GOVERNORS, KNOB_NAMES, Objective, active_knobs
from harness.spec.run_spec import RunSpec


def active(spec: RunSpec) -> dict[str, Any]:
    """Every active knob with its value; a tuple is a list. Knobs that do not exist at this point are absent."""
    flat: dict[str, Any] = {}
    _flatten(spec, "", flat)
    return flat


def _flatten(value: Any, name: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Objective):
        flat.update({f"{name}.{knob}": setting for knob, setting in active_knobs(value).items()})
    elif isinstance(value, BaseModel):
        for field, item in value:
            _flatten(item, f"{name}.{field}" if name else field, flat)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(item, f"{name}.{key}", flat)
    else:
        flat[name] = list(value) if isinstance(value, tuple) else value


def governor(knob: str) -> str | None:
    """The selector that decides whether this knob exists: `objective.rule.type` for `objective.rule.clip_low`."""
    section, _, rest = knob.partition(".")
    if section == "objective":
        selector = GOVERNORS.get(rest)
        return f"objective.{selector}" if selector else None
    if knob.startswith("model.cold_start.") and not knob.endswith(".type"):
        return "model.cold_start.type"
    return None


def _model_knobs(model: type[BaseModel], prefix: str) -> list[str]:
    names: list[str] = []
    for field, info in model.model_fields.items():
        name = f"{prefix}{field}"
        members = [t for t in (info.annotation, *get_args(info.annotation)) if isinstance(t, type)]
        sections = [t for t in members if issubclass(t, BaseModel)]
        if name == "objective":
            names += [f"objective.{knob}" for knob in KNOB_NAMES]
        elif sections:
            names += [knob for section in sections for knob in _model_knobs(section, f"{name}.")]
        else:
            names.append(name)
    return list(dict.fromkeys(names))


ALL_KNOBS = tuple(_model_knobs(RunSpec, ""))
"""Every knob of the spec. `reward.parts` stands for all its parts."""
