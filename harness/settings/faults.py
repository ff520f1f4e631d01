"""Faults of settings, as data and in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args, get_origin

from pydantic import ValidationError

from harness.errors import RefusedError, WordedError, few, nearest, shown
from harness.settings.fields import Settings, groups_in
from harness.settings.space import knobs_of, unions_of

Code = Literal["missing", "unknown", "value", "clash"]


@dataclass(frozen=True)
class Fault:
    code: Code
    """missing: a knob without a default is not set. unknown: the knob does not exist. value: the knob cannot have this
    value.
    clash: settings below `path` contradict each other.
    """
    path: str
    """The dotted name of the knob or section; "" for the document as a whole."""
    words: str
    origin: str = ""
    """The source of the settings, if the document combines several sources."""
    cause: WordedError | None = field(default=None, compare=False)
    """The validator's error, if it has its own code."""

    @property
    def line(self) -> str:
        """The fault's words, preceded by the origin of the settings."""
        return f"{self.origin}: {self.words}" if self.origin else self.words


class FaultyError(RefusedError, ValueError):
    """Settings are refused. Every fault is available as data, and the message has a line for each."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        """Create the error for these faults. The message lists them in this order."""
        super().__init__("\n".join(dict.fromkeys(fault.line for fault in faults)))
        self.faults = list(faults)
        self.causes = tuple(fault.cause for fault in faults if fault.cause)


def faults_of(error: ValidationError, model: type[Settings], prefix: str = "", listed_by: str = "") -> Iterator[Fault]:
    """Yield pydantic's errors as faults in bench's own words.

    prefix: text that precedes the names of the model's knobs, e.g. `objective.`.
    listed_by: the command that lists the knobs. If it is "", the fault of an unknown key lists the keys of its group.
    """
    details = error.errors(include_url=False)
    # pydantic also reports a list with faulty items as too short. An error whose location contains that of another one
    # is therefore dropped.
    faulty_within = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    for detail in details:
        if detail["loc"] in faulty_within:
            continue
        name, keys = _located(model, detail["loc"])
        path = f"{prefix}{name}" if name else prefix.rstrip(".")
        given = f"{path or 'the document'} is {shown(detail['input'])}"
        message = detail["msg"].removeprefix("Value error, ")
        match detail["type"]:
            case "missing":
                yield Fault("missing", path, f"{path} has no default: set it.")
            case "union_tag_not_found":
                selector = unions_of(model)[name].selector
                yield Fault("missing", path, f"{path}.{selector} has no default here: set it.")
            case "union_tag_invalid":
                union, tag = unions_of(model)[name], shown(detail["ctx"]["tag"])
                members = ", ".join(map(repr, union.members))
                yield Fault("value", path, f"{path}.{union.selector} is {tag}: choose among {members}.")
            case "extra_forbidden":
                near = nearest(path, [f"{prefix}{knob}" for knob in knobs_of(model)] if listed_by else keys)
                rest = f"`{listed_by}` lists all." if listed_by else f"The keys here are {', '.join(keys)}."
                yield Fault("unknown", path, f"{path} is not a key here{near} {rest}")
            case "value_error":
                where, error_of_ours = f"{path}: " if path else "", detail["ctx"]["error"]
                cause = error_of_ours if isinstance(error_of_ours, WordedError) else None
                # A validator of bench may raise several problems at once, one per line.
                for line in _unindented(message).splitlines():
                    sentence = f"{where}{line}{'' if line.endswith(('?', '.')) else '.'}"
                    yield Fault("clash", path, sentence, cause=cause)
            case "dict_type" | "model_type":
                yield Fault("value", path, f"{given}: input should be a mapping, e.g. {{}}.")
            case "tuple_type" | "list_type":
                yield Fault("value", path, f"{given}: input should be a list, e.g. [a, b].")
            case "less_than_equal":
                most = detail["ctx"]["le"]
                written = f"{most:,}" if isinstance(most, int) else f"{most:g}"
                yield Fault("value", path, f"{given}: input should be less than or equal to {written}.")
            case _:
                hint = "; write null for none" if detail["input"] == "none" else ""
                yield Fault("value", path, f"{given}: {message[0].lower()}{message[1:]}{hint}.")


def _located(model: type[Settings], location: Sequence[int | str]) -> tuple[str, list[str]]:
    """Return the dotted name at a location given by pydantic, and the keys of the group that contains it.

    pydantic's location also contains the chosen member of a union, and "[key]" after a key of a mapping.
    """
    names: list[str] = []
    keys: list[str] = []
    unions, members = unions_of(model), None
    holds: object = model
    for part in location:
        if members is not None:
            holds, members = members[str(part)], None
            continue
        if part == "[key]":
            continue
        names.append(str(part))
        if groups := groups_in(holds):
            by_name = {info.alias or name: info for name, info in groups[0].model_fields.items()}
            keys = list(by_name)
            holds = by_name[str(part)].annotation if part in by_name else None
            union = unions.get(".".join(names))
            if union and union.selector and not union.is_kind:
                members = union.members
        else:
            holds = _entry_of(holds)
    return ".".join(names), keys


def _entry_of(annotation: object) -> object:
    """Return the type of the entries of a mapping or list, or None for any other type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (dict, tuple, list):
        return arguments[1] if origin is dict else arguments[0]
    return next((entry for argument in arguments if (entry := _entry_of(argument)) is not None), None)


def misnamed(name: str, model: type[Settings], prefix: str = "") -> str | None:
    """Return a message for a name that is a group of knobs instead of a knob, or None for any other name."""
    full = f"{prefix}{name}"
    if (union := unions_of(model).get(name)) and union.selector:
        return f"{full} is a section: set {full}.{union.selector} to one of {', '.join(union.members)}."
    if within := [f"{prefix}{knob}" for knob in knobs_of(model) if knob.startswith(f"{name}.")]:
        return f"{full} is a section: set one of {few(within)}."
    return None


def _unindented(message: str) -> str:
    """Join indented lines, such as the faults of a template's file, to the line that introduces them."""
    return re.sub(r"\.?\n +", "; ", re.sub(r":\n +", ": ", message))
