"""Moving to a neighbouring point of the knob space by naming the knobs that change.

There are two families of objectives, policy gradients and preferences. No knob is in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from pydantic import ValidationError

from algorithms.objective import Objective
from algorithms.preference.objective import PreferenceObjective
from algorithms.space import Knob, Knobs, active_knobs, knobs_of, unions_of
from harness import plugins
from harness.errors import UnknownNameError, few, nearest

AnyObjective = Objective | PreferenceObjective
Family = Literal["policy_gradient", "preference"]
AnObjective = TypeVar("AnObjective", bound=AnyObjective)

_CLASSES: Mapping[Family, type[AnyObjective]] = {"policy_gradient": Objective, "preference": PreferenceObjective}


def family_of(objective: AnyObjective) -> Family:
    """Which family an objective belongs to."""
    return next(family for family, model in _CLASSES.items() if isinstance(objective, model))


@plugins.cached
def objective_knobs() -> Mapping[str, Knob]:
    """Every knob of either family by dotted name, whether or not it exists at a given point."""
    return {name: knob for model in _CLASSES.values() for name, knob in knobs_of(model).items()}


def with_overrides(objective: AnObjective, overrides: Mapping[str, object]) -> AnObjective:
    """The objective with some dotted knobs changed: `with_overrides(grpo, {"rule.clip_high": 0.28})`.

    Setting a `type` resets the other knobs of its group to that type's defaults. A knob that no longer exists once its
    selector has changed is dropped. The order of the overrides does not matter.

    Raises ValueError for unknown knobs, those of the other family, bad values and combinations without meaning, naming
    all of them.
    """
    model = type(objective)
    known = {knob: value for knob, value in overrides.items() if knob in knobs_of(model)}
    kept = {knob: value for knob, value in active_knobs(objective).items() if not _is_reset(model, knob, known)}
    knobs = kept | known
    misplaced = _misplaced(model, knobs)
    problems = [*(_unknown(model, knob) for knob in overrides if knob not in known), *misplaced.values()]
    try:
        nested = _nest({knob: value for knob, value in knobs.items() if knob not in misplaced})
        moved = cast("AnObjective", model.model_validate(nested))
    except ValidationError as error:
        problems += _readable(model, error)
    if problems:
        raise ValueError("\n".join(problems))
    return moved


def _unknown(model: type[Knobs], knob: str) -> str:
    names = knobs_of(model)
    for family, other in _CLASSES.items():
        if other is not model and any(name == knob or name.startswith(f"{knob}.") for name in knobs_of(other)):
            own = "policy-gradient" if family == "preference" else "preference"
            return (
                f"{knob} belongs to {family.replace('_', '-')} objectives, and this is a {own} objective: leave it "
                f"out, or choose another algorithm{nearest(knob, names)}"
            )
    if union := unions_of(model).get(knob):
        return f"{knob} is a group of knobs: set {knob}.{union.selector} to one of {', '.join(union.members)}"
    if within := [name for name in names if name.startswith(f"{knob}.")]:
        return f"{knob} is a group of knobs: set one of {few(within)}"
    return str(UnknownNameError("objective knob", knob, names, "bench ls knobs"))


def _is_reset(model: type[Knobs], knob: str, overrides: Mapping[str, object]) -> bool:
    """Whether the overrides send this knob back to its default: its group has a new type, or it ceases to exist."""
    group, _, _ = knob.rpartition(".")
    if group in unions_of(model) and f"{group}.{unions_of(model)[group].selector}" in overrides:
        return True
    known = knobs_of(model).get(knob)  # None for a knob of a rule that is not in use yet
    if known is None or known.selector is None or known.selector not in overrides:
        return False
    return overrides[known.selector] not in known.exists_at


def _misplaced(model: type[Knobs], knobs: Mapping[str, object]) -> dict[str, str]:
    """Knobs that the type of their group does not have, each with the complaint."""
    complaints = {}
    for field, (selector, members) in unions_of(model).items():
        kind = str(knobs.get(f"{field}.{selector}"))
        for knob in knobs:
            group, _, name = knob.rpartition(".")
            if group == field and kind in members and name not in members[kind].model_fields:
                owners = [owner for owner, member in members.items() if name in member.model_fields]
                remedy = f"leave it out, or set {field}.{selector} to {' or '.join(owners)}"
                complaints[knob] = f"{knob} does not exist while {field}.{selector}={kind}: {remedy}"
    return complaints


def _nest(knobs: Mapping[str, object]) -> dict[str, object]:
    nested: dict[str, Any] = {}
    for knob, value in knobs.items():
        *path, last = knob.split(".")
        group = nested
        for name in path:
            group = group.setdefault(name, {})
        group[last] = value
    return nested


def _readable(model: type[Knobs], error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        knob = _dotted(model, [str(part) for part in detail["loc"]])
        message = detail["msg"]
        match detail["type"]:
            case "value_error":
                yield message.removeprefix("Value error, ")
            case "missing":
                yield f"{knob} has no default here: set it"
            case "union_tag_invalid":
                union = unions_of(model)[knob]
                yield (
                    f"{knob}.{union.selector}={detail['ctx']['tag']!r}: it should be one of {', '.join(union.members)}"
                )
            case _:
                hint = "; write null for none" if detail["input"] == "none" else ""
                yield f"{knob}={detail['input']!r}: {message[0].lower()}{message[1:]}{hint}"


def _dotted(model: type[Knobs], path: list[str]) -> str:
    """The knob at a path of pydantic's, which puts a union member's name behind its field: kl, loss, beta."""
    knob, unions = "", unions_of(model)
    for part in path:
        if knob not in unions or part not in unions[knob].members:
            knob = f"{knob}.{part}" if knob else part
    return knob
