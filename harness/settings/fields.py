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
    """A group of settings. It is frozen and strict: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def excludes(cls) -> tuple[str, ...]:
        """Return the fields of the enclosing group that do not exist in the presence of this group."""
        return ()

    def absent_fields(self) -> list[str]:
        """Return further fields that nothing reads at this point, beyond those that markers exclude: not knobs."""
        return []

    def contradictions(self) -> Iterator[str | InvalidError]:
        """Yield the contradictions between fields that are each valid: their values, the rule and the remedy."""
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
    """Marks a field that exists only if another field, the selector, has one of these values."""

    selector: str
    """A field of the same group, or a dotted name relative to the group."""
    values: tuple[object, ...] = ()
    """The values; () stands for any value except None."""
    unless: tuple[object, ...] = ()
    """Values of the selector at which the field does not exist."""
    refused: bool = True
    """True if it is an error to set the field where it does not exist."""

    def holds_at(self, value: object) -> bool:
        """Return whether the field exists if the selector has this value. None stands for an unset selector."""
        return (value in self.values if self.values else value is not None) and value not in self.unless


@dataclass(frozen=True)
class IfChosen:
    """Marks a field that is not a knob if it contains null or a group of `type: none`."""

    explained_by: str | None = None
    """The full name of the knob that implies that something is chosen here."""


@dataclass(frozen=True)
class OneOf:
    """Marks a field that contains a group of one kind, ours or a plug-in's. The group's `type` selects it."""

    kind: plugins.Kind[Any]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.no_info_before_validator_function(self._chosen, handler(source))
        schema["serialization"] = core_schema.simple_ser_schema("any")  # the fields of the chosen group, not the base's
        return schema

    def _chosen(self, given: object) -> object:
        """Return the validated group that a mapping's `type` names. Raises UnknownNameError."""
        if not isinstance(given, dict):
            return given
        if "type" not in given:
            raise InvalidError("settings.kind_without_type", noun=self.kind.noun)
        return self.kind.find(str(given["type"])).model_validate(given)


@dataclass(frozen=True)
class MadeOf:
    """Marks a field whose group depends on the plug-ins in use. `make` returns the present group."""

    make: Callable[[], type[Settings]]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.no_info_before_validator_function(
            lambda given: self.make().model_validate(given), handler(source)
        )
        schema["serialization"] = core_schema.simple_ser_schema("any")
        return schema


@dataclass(frozen=True)
class InWords:
    """Marks a field whose declaration lacks something that a table of knobs should say."""

    type: Callable[[], str] | None = None
    """Returns the type in words. It is called when a table is made, because plug-ins may add choices."""
    default: str | None = None


LARGEST_NUMBER = 1e30
"""The largest absolute value of a knob; its inverse is the smallest. Beyond these, a 32-bit number becomes infinite or
0 after a single multiplication.
"""

KnobValue = str | float | int | None
Document = dict[str, Any]
"""Nested settings in the form of a YAML file, before validation."""
Marker = TypeVar("Marker")
Item = TypeVar("Item")
# YAML has no tuples, and in strict mode a list is not accepted as a tuple.
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


class Groups(NamedTuple):
    """The groups of which a field contains one."""

    selector: str | None
    """The field of the groups that identifies the chosen group; None if their other fields do."""
    members: Mapping[str, type[Settings]]
    """The groups by the values of the selector."""
    is_kind: bool = False


@dataclass(frozen=True)
class SettingsField:
    """A field of a group: a knob, another group, or a union of groups."""

    name: str
    info: FieldInfo

    def mark(self, kind: type[Marker]) -> Marker | None:
        """Return the field's marker of a class, or None if it has none."""
        return next((mark for mark in self.info.metadata if isinstance(mark, kind)), None)

    @cached_property
    def only_with(self) -> OnlyWith | None:
        return self.mark(OnlyWith)

    @cached_property
    def if_chosen(self) -> IfChosen | None:
        """The marker that says that the field is not a knob if it is empty."""
        return self.mark(IfChosen)

    @property
    def group(self) -> type[Settings] | None:
        """The group that the field always contains, or None if it contains none or one of several."""
        if made := self.mark(MadeOf):
            return made.make()
        groups = groups_in(self.info.annotation)
        return groups[0] if len(groups) == 1 and self.mark(OneOf) is None else None

    @property
    def union(self) -> Groups | None:
        """The groups of which the field contains one, or None if it has no choice of groups."""
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
    """Return a group's own fields, in which a selector comes first, followed by its inherited fields."""
    own = [name for name in group.__annotations__ if name in group.model_fields]
    names = dict.fromkeys([*own, *group.model_fields])
    return tuple(SettingsField(name, group.model_fields[name]) for name in names)


def groups_in(annotation: object) -> list[type[Settings]]:
    """Return the groups that a field may contain: one group, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [group for argument in get_args(annotation) for group in groups_in(argument)]
    return []


def without(name: str, union: Groups) -> tuple[str, ...]:
    """Return the members of a union that do not exclude a field of the enclosing group."""
    return tuple(kind for kind, member in union.members.items() if name not in member.excludes())


class Setting(NamedTuple):
    """A knob of an instance of a group."""

    knob: str
    value: object
    default: object
    absent_by: OnlyWith | None
    """The condition that the knob fails at this point, with the full name of the selector. None if the knob exists."""


def active_knobs(group: Settings) -> dict[str, Any]:
    """Map the knobs that exist at this point to their values, as gated, hashed and shown. Tuples become lists."""
    return {one.knob: one.value for one in settings_of(group) if one.absent_by is None}


def defaults(group: Settings) -> dict[str, object]:
    """Map every knob of the chosen groups, whether or not it exists at this point, to its default."""
    return {one.knob: one.default for one in settings_of(group)}


def _without_effect(group: Settings) -> Iterator[InvalidError]:
    """Yield an error for each field that is set but does not exist at this point. It names the condition."""
    if not _is_conditional(type(group)):
        return
    values = vars(group)
    excluded = _excluded(group, "")
    for field in fields_of(type(group)):
        only_with = excluded.get(field.name) or field.only_with
        if only_with is None or not only_with.refused or only_with.holds_at(_value_at(values, only_with.selector)):
            continue
        chosen, value = _value_at(values, only_with.selector), values[field.name]
        # A field counts as set only if it differs from its default, because pydantic fills in the rest.
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
    """Return whether some fields of the group may not exist: they have a condition, or a union may exclude them."""
    return bool(_unions_in(group)) or any(field.only_with for field in fields_of(group))


def settings_of(group: Settings, prefix: str = "") -> list[Setting]:
    """Return all knobs of an instance of a group. Its groups may come from plug-ins that are no longer in use."""
    found: list[Setting] = []
    _collect(group, prefix, None, found)
    return found


def _collect(group: Settings, prefix: str, absent_by: OnlyWith | None, found: list[Setting]) -> None:
    values = vars(group)
    excluded, unread = _excluded(group, prefix), group.absent_fields()
    for field in fields_of(type(group)):
        value, only_with = values[field.name], field.only_with
        path = f"{prefix}{field.name}"
        # If a group does not exist, nothing below it exists.
        absent = absent_by or excluded.get(field.name)
        if absent is None and only_with is not None and not only_with.holds_at(_value_at(values, only_with.selector)):
            absent = replace(only_with, selector=f"{prefix}{only_with.selector}")
        if field.name in unread or (field.if_chosen and getattr(value, "type", value) in (None, "none")):
            # No single knob decides this, so the marker names none.
            absent = absent or OnlyWith("")
        if isinstance(value, Settings):
            _collect(value, f"{path}.", absent, found)
        elif isinstance(value, dict):
            # The user chose these names. Each entry is a separate knob.
            entries = dotted(value, f"{path}.").items()
            found += (Setting(knob, entry, None, absent) for knob, entry in entries if entry != {})
        else:
            plain = list(value) if isinstance(value, tuple) else value
            found.append(Setting(path, plain, field.info.default, absent))


def _excluded(group: Settings, prefix: str) -> dict[str, OnlyWith]:
    """Map the fields that the chosen groups exclude to the condition under which they would exist."""
    return {
        name: OnlyWith(f"{prefix}{field.name}.{union.selector}", without(name, union))
        for field in _unions_in(type(group))
        for name in getattr(group, field.name).excludes()
        if (union := field.union)
    }


@cache
def _unions_in(group: type[Settings]) -> tuple[SettingsField, ...]:
    """Return the fields of a group that contain one of several groups."""
    return tuple(field for field in fields_of(group) if field.mark(OneOf) or len(groups_in(field.info.annotation)) > 1)


def _value_at(values: object, path: str) -> object:
    """Return the value at a dotted path, or None if the path does not exist."""
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)
    return values


def dotted(settings: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names. If a name occurs twice, the last value counts. Empty ones are kept."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= dotted(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def nested(knobs: Mapping[str, object], split: Callable[[str], Sequence[str] | None] = lambda knob: None) -> Document:
    """Return dotted names as nested mappings.

    split: returns the segments of a name if one of them contains dots, and None for any other name.
    """
    document: Document = {}
    for knob, value in knobs.items():
        *path, last = split(knob) or knob.split(".")
        section = document
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return document
