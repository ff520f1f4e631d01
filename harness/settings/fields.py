"""The base class of all settings, the markers of their fields, and the walk over an instance of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import UnionType
from typing import Annotated, Any, NamedTuple, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from harness import plugins
from harness.errors import InvalidError


class Settings(BaseModel):
    """A group of settings. Frozen and strict: an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def excludes(cls) -> tuple[str, ...]:
        """Return the fields of the enclosing group that do not exist in the presence of this group."""
        return ()

    def absent_fields(self) -> list[str]:
        """Return fields that nothing reads at this point, besides those with markers; they are no knobs then."""
        return []

    def contradictions(self) -> Iterator[str | InvalidError]:
        """Yield what is wrong with fields that are valid one by one: their values, the rule and the remedy."""
        yield from ()

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if problems := [*_without_effect(self), *self.contradictions()]:
            refusal = InvalidError("\n".join(map(str, problems)))
            refusal.causes = tuple(one for one in problems if isinstance(one, InvalidError))
            raise refusal
        return self


@dataclass(frozen=True)
class OnlyWith:
    """Marks a field that exists only if another one, the selector, has one of these values."""

    selector: str
    """A field of the same group, or dotted from there."""
    values: tuple[object, ...] = ()
    """() for any value that is not None."""
    unless: tuple[object, ...] = ()
    """Values at which the field does not exist."""
    refused: bool = True
    """True if it is an error to set the field where it does not exist."""

    def holds_at(self, value: object) -> bool:
        """Return whether the field exists if the selector has this value; None if nothing is set."""
        return (value in self.values if self.values else value is not None) and value not in self.unless


@dataclass(frozen=True)
class IfChosen:
    """Marks a field that is no knob while it holds nothing: null, or a group of `type: none`."""

    explained_by: str | None = None
    """The knob, named from the top, that implies that something is chosen here."""


@dataclass(frozen=True)
class OneOf:
    """Marks a field that holds one group of settings of a kind, ours or a plug-in's, chosen by its `type`."""

    kind: plugins.Kind[Any]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.no_info_before_validator_function(self._chosen, handler(source))
        schema["serialization"] = core_schema.simple_ser_schema("any")  # the fields of the chosen group, not the base's
        return schema

    def _chosen(self, given: object) -> object:
        """Validate a mapping as the group that its `type` names. Raises UnknownNameError."""
        if not isinstance(given, dict):
            return given
        if "type" not in given:
            raise InvalidError("settings.kind_without_type", noun=self.kind.noun)
        return self.kind.find(str(given["type"])).model_validate(given)


@dataclass(frozen=True)
class MadeOf:
    """Marks a field whose group depends on the plug-ins in use: `make` returns it at the time of the call."""

    make: Callable[[], type[Settings]]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.no_info_before_validator_function(
            lambda given: self.make().model_validate(given), handler(source)
        )
        schema["serialization"] = core_schema.simple_ser_schema("any")
        return schema


@dataclass(frozen=True)
class InWords:
    """Marks a field whose declaration does not say everything that a table of knobs should."""

    type: Callable[[], str] | None = None
    """Called when a table is made, since plug-ins may add choices."""
    default: str | None = None


LARGEST_NUMBER = 1e30
"""The largest size of a knob's value; its inverse is the smallest. Beyond these a 32-bit number becomes infinite or 0
after a single multiplication."""

KnobValue = str | float | int | None
Document = dict[str, Any]
"""Nested settings as a YAML file holds them, before they are validated."""
Marker = TypeVar("Marker")
Item = TypeVar("Item")
# YAML has no tuples, and strict mode would refuse its lists for them.
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


class Groups(NamedTuple):
    """A field that holds one of several groups."""

    selector: str | None
    """The field of the groups that says which one it is; None if their other fields tell them apart."""
    members: Mapping[str, type[Settings]]
    """The groups by the selector's values."""
    is_kind: bool = False
    """True if plug-ins can add to them."""


@dataclass(frozen=True)
class SettingsField:
    """A field of a group: a knob, another group, or a union of groups."""

    name: str
    info: FieldInfo

    def mark(self, kind: type[Marker]) -> Marker | None:
        """Return its marker of a class."""
        return next((mark for mark in self.info.metadata if isinstance(mark, kind)), None)

    @cached_property
    def only_with(self) -> OnlyWith | None:
        """The marker that says where it exists."""
        return self.mark(OnlyWith)

    @cached_property
    def if_chosen(self) -> IfChosen | None:
        """The marker that it is no knob while it holds nothing."""
        return self.mark(IfChosen)

    @property
    def group(self) -> type[Settings] | None:
        """The group that it always holds."""
        if made := self.mark(MadeOf):
            return made.make()
        groups = groups_in(self.info.annotation)
        return groups[0] if len(groups) == 1 and self.mark(OneOf) is None else None

    @property
    def union(self) -> Groups | None:
        """The groups of which it holds one."""
        if one_of := self.mark(OneOf):
            return Groups("type", one_of.kind.all(), is_kind=True)
        groups = groups_in(self.info.annotation)
        if len(groups) < 2:
            return None
        if not isinstance(selector := self.info.discriminator, str):
            return Groups(None, {group.__name__: group for group in groups})
        return Groups(selector, {str(group.model_fields[selector].default): group for group in groups})


@cache
def fields_of(group: type[Settings]) -> tuple[SettingsField, ...]:
    """Return a group's fields: its own, of which a selector is declared first, then those that it inherits."""
    own = [name for name in group.__annotations__ if name in group.model_fields]
    names = dict.fromkeys([*own, *group.model_fields])
    return tuple(SettingsField(name, group.model_fields[name]) for name in names)


def groups_in(annotation: object) -> list[type[Settings]]:
    """Return the groups that a field may hold: one, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [group for argument in get_args(annotation) for group in groups_in(argument)]
    return []


def without(name: str, union: Groups) -> tuple[str, ...]:
    """Return the members of a union that leave a field of the enclosing group in existence."""
    return tuple(kind for kind, member in union.members.items() if name not in member.excludes())


class Setting(NamedTuple):
    """A knob of an instance of a group."""

    knob: str
    value: object
    default: object
    absent_by: OnlyWith | None
    """Why the knob does not exist at this point, with the full name of the selector."""


def active_knobs(group: Settings) -> dict[str, Any]:
    """Map the knobs that exist at this point to their values, which are gated, hashed and shown. A tuple is a list."""
    return {one.knob: one.value for one in settings_of(group) if one.absent_by is None}


def defaults(group: Settings) -> dict[str, object]:
    """Map every knob of the groups in use, whether or not it exists at this point, to its default."""
    return {one.knob: one.default for one in settings_of(group)}


def _without_effect(group: Settings) -> Iterator[InvalidError]:
    """Yield, for each field that is set but does not exist at this point, what it would need."""
    if not _is_conditional(type(group)):
        return
    values = vars(group)
    excluded = _excluded(group, "")
    for field in fields_of(type(group)):
        only_with = excluded.get(field.name) or field.only_with
        if only_with is None or not only_with.refused or only_with.holds_at(_value_at(values, only_with.selector)):
            continue
        chosen, value = _value_at(values, only_with.selector), values[field.name]
        # Only what differs from its default counts as set: pydantic fills in the rest.
        if isinstance(value, Settings):
            changed = [one for one in settings_of(value, f"{field.name}.") if one.value != one.default]
        else:
            changed = [Setting(field.name, value, field.info.default, None)] if value != field.info.default else []
        for one in changed:
            yield InvalidError(
                "settings.no_effect",
                knob=one.knob,
                value=one.value,
                selector=only_with.selector,
                chosen=chosen,
                instead=" or ".join(map(str, only_with.values)),
            )


@cache
def _is_conditional(group: type[Settings]) -> bool:
    """Return whether some of its fields may not exist at a point; a union may exclude some."""
    return bool(_unions_in(group)) or any(field.only_with for field in fields_of(group))


def settings_of(group: Settings, prefix: str = "") -> list[Setting]:
    """Return all knobs of an instance of a group, whose groups may be of plug-ins that are no longer in use."""
    found: list[Setting] = []
    _collect(group, prefix, None, found)
    return found


def _collect(group: Settings, prefix: str, absent_by: OnlyWith | None, found: list[Setting]) -> None:
    values = vars(group)
    excluded, unread = _excluded(group, prefix), group.absent_fields()
    for field in fields_of(type(group)):
        value, only_with = values[field.name], field.only_with
        path = f"{prefix}{field.name}"
        # A group that does not exist takes everything below it along.
        absent = absent_by or excluded.get(field.name)
        if absent is None and only_with is not None and not only_with.holds_at(_value_at(values, only_with.selector)):
            absent = replace(only_with, selector=f"{prefix}{only_with.selector}")
        if field.name in unread or (field.if_chosen and getattr(value, "type", value) in (None, "none")):
            # No single knob decides, so the marker names none.
            absent = absent or OnlyWith("")
        if isinstance(value, Settings):
            _collect(value, f"{path}.", absent, found)
        elif isinstance(value, dict):
            # The user chose these names; each entry is a knob of its own.
            entries = dotted(value, f"{path}.").items()
            found += (Setting(knob, entry, None, absent) for knob, entry in entries if entry != {})
        else:
            plain = list(value) if isinstance(value, tuple) else value
            found.append(Setting(path, plain, field.info.default, absent))


def _excluded(group: Settings, prefix: str) -> dict[str, OnlyWith]:
    """Map the fields that do not exist in the presence of the chosen groups to the condition under which they would."""
    return {
        name: OnlyWith(f"{prefix}{field.name}.{union.selector}", without(name, union))
        for field in _unions_in(type(group))
        for name in getattr(group, field.name).excludes()
        if (union := field.union)
    }


@cache
def _unions_in(group: type[Settings]) -> tuple[SettingsField, ...]:
    """Return its fields that hold one of several groups."""
    return tuple(field for field in fields_of(group) if field.mark(OneOf) or len(groups_in(field.info.annotation)) > 1)


def _value_at(values: object, path: str) -> object:
    """Return the value at a dotted path; None if there is none."""
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)
    return values


def dotted(settings: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names. Later spellings of one name win; an empty mapping stays."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= dotted(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def nested(knobs: Mapping[str, object], split: Callable[[str], Sequence[str] | None] = lambda knob: None) -> Document:
    """Nest dotted names.

    split: the segments of a name of which one has dots of its own; None for any other name.
    """
    document: Document = {}
    for knob, value in knobs.items():
        *path, last = split(knob) or knob.split(".")
        section = document
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return document
