"""Moving to a neighbouring point of the knob space by naming the knobs that change."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from algorithms.families import FAMILY_KNOBS, AnyObjective, Family, family_of
from algorithms.space import EXISTS_AT, UNIONS, active_knobs, exists

AnObjective = TypeVar("AnObjective", bound=AnyObjective)

_ADJECTIVES: Mapping[Family, str] = {"policy_gradient": "policy-gradient", "preference": "preference"}


def with_overrides(objective: AnObjective, overrides: Mapping[str, object]) -> AnObjective:
    """The objective with some dotted knobs changed: `with_overrides(grpo, {"rule.clip_high": 0.28})`.

    Setting a `type` resets the other knobs of its group to that type's defaults. A knob that no longer exists once its
    selector has changed is dropped. The order of the overrides does not matter.

    Raises ValueError for unknown knobs, those of the other family, bad values and combinations without meaning, naming
    all of them.
    """
    names = tuple(FAMILY_KNOBS[family_of(objective)])
    kept = {knob: value for knob, value in active_knobs(objective).items() if not _is_reset(knob, overrides)}
    known = {knob: value for knob, value in overrides.items() if knob in names}
    knobs = kept | known
    misplaced = _misplaced(knobs)
    problems = [*(_unknown(knob, family_of(objective)) for knob in overrides if knob not in known), *misplaced.values()]
    try:
        nested = _nest({knob: value for knob, value in knobs.items() if knob not in misplaced})
        moved = cast("AnObjective", type(objective).model_validate(nested))
    except ValidationError as error:
        problems += _readable(error)
    if problems:
        raise ValueError("\n".join(problems))
    return moved


def nearest(name: str, valid: tuple[str, ...]) -> str:
    """A hint that names the valid names closest to a misspelt one, or all of them when none is close."""
    by_last_segment = {candidate.rsplit(".", 1)[-1]: candidate for candidate in valid}
    close = [
        *difflib.get_close_matches(name, valid, n=3),
        *(by_last_segment[part] for part in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_last_segment, n=3)),
    ]
    if close:
        return f"did you mean {' or '.join(dict.fromkeys(close))}?"
    return f"valid: {', '.join(valid)}"


def _unknown(knob: str, family: Family) -> str:
    names = tuple(FAMILY_KNOBS[family])
    for other, knobs in FAMILY_KNOBS.items():
        if other != family and any(name == knob or name.startswith(f"{knob}.") for name in knobs):
            hint = nearest(knob, names)
            return (
                f"{knob} belongs to {_ADJECTIVES[other]} objectives, and this is a {_ADJECTIVES[family]} objective: "
                f"leave it out, or choose another algorithm{f'; {hint}' if hint.startswith('did') else ''}"
            )
    if knob in UNIONS:
        union = UNIONS[knob]
        return f"{knob} is a group of knobs: set {knob}.{union.selector} to one of {', '.join(union.members)}"
    if within := [name for name in names if name.startswith(f"{knob}.")]:
        return f"{knob} is a group of knobs: set one of {', '.join(within)}"
    return f"unknown objective knob {knob!r}: {nearest(knob, names)}"


def _union_of(knob: str) -> str | None:
    """The union that a knob belongs to: `entropy.adaptive.delta` -> `entropy.adaptive`."""
    field = knob.rpartition(".")[0]
    return field if field in UNIONS else None


def _is_reset(knob: str, overrides: Mapping[str, object]) -> bool:
    """Whether the overrides send this knob back to its default: its group has a new type, or it ceases to exist."""
    field = _union_of(knob)
    if field is not None and f"{field}.{UNIONS[field].selector}" in overrides:
        return True
    selector = EXISTS_AT[knob][0] if knob in EXISTS_AT else None
    return selector in overrides and not exists(knob, overrides)


def _misplaced(knobs: Mapping[str, object]) -> dict[str, str]:
    """Knobs that the type of their group does not have, each with the complaint."""
    complaints = {}
    for knob in knobs:
        field, name = _union_of(knob), knob.rpartition(".")[2]
        if field is None:
            continue
        selector, members = UNIONS[field]
        kind = str(knobs.get(f"{field}.{selector}"))
        if kind in members and name not in members[kind].model_fields:
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


def _readable(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        knob = _dotted([str(part) for part in detail["loc"]])
        message = detail["msg"]
        match detail["type"]:
            case "value_error":
                yield message.removeprefix("Value error, ")
            case "missing":
                yield f"{knob} has no default here: set it"
            case "union_tag_invalid":
                union = UNIONS[knob]
                yield (
                    f"{knob}.{union.selector}={detail['ctx']['tag']!r}: it should be one of {', '.join(union.members)}"
                )
            case _:
                hint = "; write null for none" if detail["input"] == "none" else ""
                yield f"{knob}={detail['input']!r}: {message[0].lower()}{message[1:]}{hint}"


def _dotted(path: list[str]) -> str:
    """The knob at a path of pydantic's, which puts a union member's name behind its field: rule, ppo_clip, clip_low."""
    knob = ""
    for part in path:
        if knob not in UNIONS or part not in UNIONS[knob].members:
            knob = f"{knob}.{part}" if knob else part
    return knob
