"""Descriptions of knobs for tables: the type, default and range of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.settings.fields import InWords
from harness.settings.space import Knob


@dataclass(frozen=True)
class KnobFacts:
    """The facts that a user needs to set a knob. Values are written as in a sweep file."""

    type: str
    """The type, such as `int`, `float | null` or `list of str`. For a fixed choice, all values, such as `none | sft`.
    """
    default: str
    """The default, or words such as `the task's` if it depends on other settings; "" if the knob must be set."""
    range: str
    """The range, such as `> 0, <= 1`; for a list, that of its length; "" if every value of the type is allowed."""
    description: str
    """The description. For a knob that exists only with some types, it is `at_step: ... | converged: ...`."""


def facts_of(knob: Knob) -> KnobFacts:
    # Members of a union often have equal declarations. `dict.fromkeys` removes duplicates and keeps the order.
    def joined(parts: Iterable[str], by: str) -> str:
        return by.join(dict.fromkeys(parts))

    # The default of a selector is that of the field that contains its group.
    held_by = knob.above[-1:]
    chosen = held_by and knob.is_selector
    return KnobFacts(
        type=joined((one for info in knob.fields for one in _types(info.annotation, info.metadata)), " | "),
        default=joined(map(_default, held_by if chosen else knob.fields), " or "),
        range=joined((", ".join(_bounds(info.metadata)) for info in knob.fields), " or "),
        description=knob.description,
    )


def _default(info: FieldInfo) -> str:
    in_words = [marker.default for marker in info.metadata if isinstance(marker, InWords) and marker.default]
    return in_words[-1] if in_words else "" if info.is_required() else written(info.default)


def written(value: object) -> str:
    """Return a setting as it is written in a sweep file."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, BaseModel):  # the chosen group of a union
        value = value.model_dump()
        return written(value.get("type", value.get("where")))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {written(item)}' for key, item in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)


def _types(annotation: object, metadata: Sequence[object] = ()) -> Iterator[str]:
    """Yield the alternatives of a type, in words."""
    in_words = [marker.type() for marker in metadata if isinstance(marker, InWords) and marker.type]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if in_words:
        yield in_words[-1]
    elif origin is Literal:
        yield from map(str, arguments)
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from _types(argument)
    elif origin is Annotated:
        yield from _types(arguments[0], arguments[1:])
    elif origin is tuple:
        yield f"list of {' | '.join(_types(arguments[0]))}"
    elif origin is dict:
        yield " -> ".join(" | ".join(_types(argument)) for argument in arguments)
    elif annotation is bool:
        yield "true | false"
    else:
        yield "null" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": ">=", "max_length": "<="}


def _bounds(metadata: Sequence[object]) -> Iterator[str]:
    for constraint in metadata:
        for name, sign in _BOUNDS.items():
            bound = getattr(constraint, name, None)
            if bound is not None:
                shown = f"{bound:,}" if isinstance(bound, int) else bound
                yield f"{sign} {shown}{' items' if name.endswith('length') else ''}"
