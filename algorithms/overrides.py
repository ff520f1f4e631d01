"""Moving to a neighbouring point of the knob space by naming the knobs that change."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from algorithms.objective import ABSENT_AT, KNOB_NAMES, UNIONS, Objective, active_knobs


def with_overrides(objective: Objective, overrides: Mapping[str, object]) -> Objective:
    """The objective with some dotted knobs changed: `with_overrides(grpo, {"rule.clip_high": 0.28})`.

    Setting a `type` resets the other knobs of its group to that type's defaults. A knob that no longer exists once its
    selector has changed is dropped. The order of the overrides does not matter.

    Raises ValueError for unknown knobs, bad values and combinations without meaning, naming all of them.
    """
    kept = {knob: value for knob, value in active_knobs(objective).items() if not _is_reset(knob, overrides)}
    known = {knob: value for knob, value in overrides.items() if knob in KNOB_NAMES}
    knobs = kept | known
    misplaced = _misplaced(knobs)
    problems = [*(_unknown(knob) for knob in overrides if knob not in known), *misplaced.values()]
    try:
        moved = Objective.model_validate(_nest({knob: value for knob, value in knobs.items() if knob not in misplaced}))
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


def _unknown(knob: str) -> str:
    if knob in UNIONS:
        return f"{knob} is a group of knobs: set {knob}.type to one of {', '.join(UNIONS[knob])}"
    return f"unknown objective knob {knob!r}: {nearest(knob, KNOB_NAMES)}"


def _is_reset(knob: str, overrides: Mapping[str, object]) -> bool:
    """Whether the overrides send this knob back to its default: its group has a new type, or it ceases to exist."""
    field = knob.partition(".")[0]
    if field in UNIONS:
        return f"{field}.type" in overrides
    selector, absent_at = ABSENT_AT.get(knob, ("", ""))
    return overrides.get(selector) == absent_at


def _misplaced(knobs: Mapping[str, object]) -> dict[str, str]:
    """Knobs that the type of their group does not have, each with the complaint."""
    complaints = {}
    for knob in knobs:
        field, _, name = knob.partition(".")
        kind = str(knobs.get(f"{field}.type"))
        members = UNIONS.get(field, {})
        if kind in members and name not in members[kind].model_fields:
            owners = [owner for owner, member in members.items() if name in member.model_fields]
            remedy = f"leave it out, or set {field}.type to {' or '.join(owners)}"
            complaints[knob] = f"{knob} does not exist while {field}.type={kind}: {remedy}"
    return complaints


def _nest(knobs: Mapping[str, object]) -> dict[str, object]:
    flat = {knob: value for knob, value in knobs.items() if "." not in knob}
    groups = {
        field: {knob.removeprefix(f"{field}."): value for knob, value in knobs.items() if knob.startswith(f"{field}.")}
        for field in UNIONS
    }
    return flat | groups


def _readable(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        # pydantic puts the union member's name into the path: rule, ppo_clip, clip_low.
        path = [str(part) for part in detail["loc"]]
        knob = ".".join(path[:1] + path[2:])
        message = detail["msg"]
        match detail["type"]:
            case "value_error":
                yield message.removeprefix("Value error, ")
            case "missing":
                yield f"{knob} has no default here: set it"
            case "union_tag_invalid":
                yield f"{knob}.type={detail['ctx']['tag']!r}: it should be one of {', '.join(UNIONS[knob])}"
            case _:
                yield f"{knob}={detail['input']!r}: {message[0].lower()}{message[1:]}"
