"""The knob space: which knobs a family of objectives has, and which of them exist at a given point.

A knob is one dotted field (`rule.clip_high`). Some exist only at some points: a clip range belongs to the clipping
rule, an epsilon to a standard deviation. The knob that decides is the selector, and it is declared where the knob is:

* a union is a field that holds one of several groups of knobs; the group's `type` (or `where`) says which;
* `OnlyWith` marks a field that exists only at some values of another field;
* `Knobs.excludes` names the fields that do not exist beside a group.

An absent knob keeps its default in the model and does not appear in `active_knobs`, so two objectives are the same
exactly when their active knobs are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from harness import plugins

KnobValue = str | float | int | None


class Knobs(BaseModel):
    """A group of knobs. Frozen and strict: an unknown knob is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def excludes(cls) -> tuple[str, ...]:
        """Knobs of the enclosing group that do not exist beside this group."""
        return ()


@dataclass(frozen=True)
class OnlyWith:
    """Marks a field that exists only where another field of its group, the selector, has one of these values."""

    selector: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class OneOf:
    """Marks a field that holds one group of knobs of a kind, ours or a plug-in's, chosen by its `type`."""

    kind: plugins.Kind[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.no_info_before_validator_function(self._chosen, handler(source))
        schema["serialization"] = core_schema.simple_ser_schema("any")  # the fields of the chosen group, not the base's
        return schema

    def _chosen(self, given: object) -> object:
        """Knobs as given by name become the group that their `type` names. Raises UnknownNameError."""
        if not isinstance(given, dict):
            return given
        if "type" not in given:
            raise ValueError(f"a {self.kind.noun} without its type: give `type` beside its knobs")
        return self.kind.find(str(given["type"])).model_validate(given)


class Union(NamedTuple):
    """A field that holds one of several groups of knobs: the field of theirs that says which, and the groups."""

    selector: str
    members: Mapping[str, type[Knobs]]


@dataclass(frozen=True)
class Knob:
    """One knob of a family of objectives, whether or not it exists at a given point."""

    name: str
    """Dotted."""
    description: str
    fields: tuple[FieldInfo, ...]
    """Its declarations: one, or one for each member of a union that has it."""
    selector: str | None = None
    """The knob that decides whether it exists; None for a knob that always does."""
    exists_at: tuple[object, ...] = ()
    """The selector's values at which it exists."""


@plugins.cached
def knobs_of(family: type[Knobs]) -> Mapping[str, Knob]:
    """Every knob of a family by dotted name. Selectors come before the knobs that they govern."""
    return {knob.name: knob for knob in _knobs(family)}


@plugins.cached
def unions_of(family: type[Knobs]) -> Mapping[str, Union]:
    """Dotted field -> its union."""
    return dict(_unions(family))


def active_knobs(objective: Knobs) -> dict[str, KnobValue]:
    """The knobs that exist at this point, by dotted name: what is gated, hashed and shown."""
    return {one.knob: one.value for one in _settings(objective) if one.absent_by is None}


def inactive_settings(objective: Knobs) -> Iterator[tuple[str, KnobValue, str, KnobValue]]:
    """Knobs that do not exist at this point but were set: (knob, its value, its selector, the selector's value)."""
    settings = list(_settings(objective))
    values = {one.knob: one.value for one in settings}
    for knob, value, default, absent_by in settings:
        if absent_by is not None and value != default:
            yield knob, value, absent_by, values[absent_by]


def defaults(objective: Knobs) -> dict[str, KnobValue]:
    """The default of every knob of the objective's groups, whether or not it exists at this point."""
    return {one.knob: one.default for one in _settings(objective)}


@dataclass(frozen=True)
class _Field:
    """A field of a group: a knob, another group, or a union."""

    name: str
    info: FieldInfo
    only_with: OnlyWith | None
    one_of: OneOf | None

    @property
    def group(self) -> type[Knobs] | None:
        """The group of knobs that it always holds."""
        holds: Any = self.info.annotation
        return holds if isinstance(holds, type) and issubclass(holds, Knobs) and self.one_of is None else None

    @cached_property
    def selector(self) -> str | None:
        """The field of a union's members that says which of them it holds; None for a field that is not a union."""
        discriminator = "type" if self.one_of else self.info.discriminator
        return discriminator if isinstance(discriminator, str) else None

    @property
    def union(self) -> Union | None:
        if self.selector is None:
            return None
        if self.one_of is not None:
            return Union(self.selector, self.one_of.kind.all())
        members = get_args(self.info.annotation)
        return Union(self.selector, {member.model_fields[self.selector].default: member for member in members})


@cache
def _fields(group: type[Knobs]) -> tuple[_Field, ...]:
    """A group's own fields, a selector first, before those that it shares with others."""
    own = [name for name in group.__annotations__ if name in group.model_fields]
    found = []
    for name in dict.fromkeys([*own, *group.model_fields]):
        info = group.model_fields[name]
        only_with = next((marker for marker in info.metadata if isinstance(marker, OnlyWith)), None)
        one_of = next((marker for marker in info.metadata if isinstance(marker, OneOf)), None)
        found.append(_Field(name, info, only_with, one_of))
    return tuple(found)


class _Setting(NamedTuple):
    """A knob of an objective at hand."""

    knob: str
    value: KnobValue
    default: KnobValue
    absent_by: str | None
    """The selector by whose value the knob does not exist at this point."""


def _settings(group: Knobs, prefix: str = "", absent_by: str | None = None) -> Iterator[_Setting]:
    """All knobs of a group. Only the objective itself is asked, since its rule may be of a plug-in not yet in use."""
    fields, values = _fields(type(group)), dict(group)
    excluded = {
        name: f"{prefix}{field.name}.{field.selector}"
        for field in fields
        if field.selector is not None
        for name in values[field.name].excludes()
    }
    for field in fields:
        value, only_with = values[field.name], field.only_with
        absent = absent_by or excluded.get(field.name)
        if only_with is not None and values[only_with.selector] not in only_with.values:
            absent = absent or f"{prefix}{only_with.selector}"
        if isinstance(value, Knobs):
            yield from _settings(value, f"{prefix}{field.name}.", absent)
        else:
            yield _Setting(f"{prefix}{field.name}", value, field.info.default, absent)


def _knobs(group: type[Knobs], prefix: str = "", of_group: OnlyWith | None = None) -> Iterator[Knob]:
    """All knobs of a group; of_group: where the whole group exists, its selector by its full name."""
    fields = _fields(group)
    excluding = {
        name: OnlyWith(f"{prefix}{field.name}.{union.selector}", _without(name, union))
        for field in fields
        if (union := field.union)
        for member in union.members.values()
        for name in member.excludes()
    }
    for field in fields:
        path = f"{prefix}{field.name}"
        exists = excluding.get(field.name) or _at(field.only_with, prefix) or of_group
        if union := field.union:
            yield from _union_knobs(path, union)
        elif field.group:
            yield from _knobs(field.group, f"{path}.", exists)
        else:
            yield _knob(path, field.info.description or "", (field.info,), exists)


def _union_knobs(path: str, union: Union) -> Iterator[Knob]:
    """The selector of a union, described by its members, and then the members' knobs."""
    fields: dict[str, dict[str, _Field]] = {}
    for kind, member in union.members.items():
        for field in _fields(member):
            fields.setdefault(field.name, {})[kind] = field
    for name, declared in fields.items():
        infos = tuple(field.info for field in declared.values())
        if name == union.selector:
            meanings = {kind: (member.__doc__ or "").partition("\n")[0] for kind, member in union.members.items()}
            yield _knob(f"{path}.{name}", joined_meanings(meanings), infos)
        else:
            exists = next(iter(declared.values())).only_with or OnlyWith(union.selector, tuple(declared))
            description = joined_meanings({kind: field.info.description or "" for kind, field in declared.items()})
            yield _knob(f"{path}.{name}", description, infos, _at(exists, f"{path}."))


def _knob(name: str, description: str, fields: tuple[FieldInfo, ...], exists: OnlyWith | None = None) -> Knob:
    return Knob(name, description, fields, exists.selector if exists else None, exists.values if exists else ())


def joined_meanings(meanings: Mapping[str, str]) -> str:
    """`a, b: one meaning | c: another`."""
    by_meaning: dict[str, list[str]] = {}
    for kind, meaning in meanings.items():
        by_meaning.setdefault(meaning, []).append(kind)
    return " | ".join(f"{', '.join(kinds)}: {meaning}" for meaning, kinds in by_meaning.items())


def _at(marker: OnlyWith | None, prefix: str) -> OnlyWith | None:
    """The marker with the full name of its selector."""
    return marker and replace(marker, selector=f"{prefix}{marker.selector}")


def _without(name: str, union: Union) -> tuple[str, ...]:
    """The members of a union beside which a knob of the enclosing group exists."""
    return tuple(kind for kind, member in union.members.items() if name not in member.excludes())


def _unions(group: type[Knobs], prefix: str = "") -> Iterator[tuple[str, Union]]:
    for field in _fields(group):
        if union := field.union:
            yield f"{prefix}{field.name}", union
        elif field.group:
            yield from _unions(field.group, f"{prefix}{field.name}.")
