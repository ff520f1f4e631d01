"""The knobs of a run spec by dotted name: all there are, those active in a spec, and who governs whether one exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from algorithms import GOVERNORS, KNOB_DESCRIPTIONS, KNOB_NAMES, Objective, PreferenceObjective, active_knobs
from harness.config.reward import parts_with_options, reward_section
from harness.config.run_spec import RunSpec
from harness.config.section import Section
from harness.plugins import cached


def active(spec: RunSpec) -> dict[str, Any]:
    """Every active knob with its value; a tuple is a list. Knobs that do not exist at this point are absent: also those
    of drawing and rewarding completions, where training is on given pairs."""
    flat: dict[str, Any] = {}
    _flatten(spec, "", flat)
    if spec.pairs.type == "dataset":
        return {knob: value for knob, value in flat.items() if not is_of_drawing(knob)}
    return flat


def is_of_drawing(knob: str) -> bool:
    """Whether a knob says which completions are drawn in training, and what they earn. Log-probs are at the temperature
    of rollouts, and evaluations drawn by their engine, whatever is learned from."""
    of_all = ("rollout.temperature", "rollout.engine", "rollout.vllm_memory_frac")
    return knob.startswith(("rollout.", "reward.", "task.", "budget.")) and knob not in of_all


def _flatten(value: Any, name: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Objective | PreferenceObjective):
        flat.update({f"{name}.{knob}": setting for knob, setting in active_knobs(value).items()})
    elif isinstance(value, BaseModel):
        absent = value.absent_fields() if isinstance(value, Section) else []
        for field, item in value:
            if field not in absent:
                _flatten(item, f"{name}.{field}" if name else field, flat)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(item, f"{name}.{key}", flat)
    else:
        flat[name] = list(value) if isinstance(value, tuple) else value


_GOVERNORS = {
    "rollout.round_steps": "rollout.sampler",
    "pairs.type": "objective.link",
    "pairs.max_per_prompt": "pairs.pairing",
}
"""Knobs outside the objective whose selector is not the `type` beside them. Preference objectives alone have a link."""


def governor(knob: str) -> str | None:
    """The selector that decides whether this knob exists: `objective.rule.type` for `objective.rule.clip_low`."""
    section, _, rest = knob.partition(".")
    if section == "objective":
        selector = GOVERNORS.get(rest)
        return f"objective.{selector}" if selector else None
    part = parts_with_options().get(rest.partition(".")[0]) if section == "reward" else None
    if part:
        return f"reward.parts.{part.name}"
    if knob in _GOVERNORS:
        return _GOVERNORS[knob]
    selector = f"{knob.rpartition('.')[0]}.type"
    return selector if selector in descriptions() and selector != knob else None


def _model_knobs(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Knobs with their descriptions; one of several members of a union comes once for each."""
    for field, info in model.model_fields.items():
        name = f"{prefix}{field}"
        sections = list(_sections(info.annotation))
        if name == "objective":
            yield from ((f"objective.{knob}", KNOB_DESCRIPTIONS.get(knob, "")) for knob in KNOB_NAMES)
        elif name == "reward":
            yield from _model_knobs(reward_section(), "reward.")
        elif sections:
            for section in sections:
                yield from _model_knobs(section, f"{name}.")
        else:
            yield name, info.description or ""


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold: one, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for argument in get_args(annotation):
            yield from _sections(argument)


@cached
def descriptions() -> dict[str, str]:
    """Every knob of the spec with what it does, "" where its name says it. `reward.parts` stands for all its parts."""
    return dict(_model_knobs(RunSpec, ""))
