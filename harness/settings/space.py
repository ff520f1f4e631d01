"""The walk over a class of settings: all its knobs, whether or not they exist at a given point."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.plugins import cached
from harness.settings.fields import Groups, Marker, OnlyWith, Settings, SettingsField, fields_of, without


@dataclass(frozen=True)
class Knob:
    """One knob of a class of settings, whether or not it exists at a given point."""

    name: str
    description: str
    fields: tuple[FieldInfo, ...]
    """The field's declarations: one, or one for each member of a union that has the field."""
    selector: str | None = None
    """The knob that decides whether this knob exists; None if this knob always exists."""
    exists_at: tuple[object, ...] = ()
    """The selector's values at which the knob exists; () if they are not listed."""
    above: tuple[FieldInfo, ...] = ()
    """The declarations of the enclosing groups, from the outermost to the innermost."""
    is_selector: bool = False
    """True if the knob selects the group that the innermost of these fields contains."""

    def mark(self, kind: type[Marker]) -> Marker | None:
        """Return the knob's marker of a class, or None if it has none.

        For a selector, this is the marker of the field that contains the selected group.
        """
        fields = self.above[-1:] if self.is_selector else self.fields
        return next((mark for info in fields for mark in _marks_in(info) if isinstance(mark, kind)), None)

    def inherited(self, kind: type[Marker]) -> Marker | None:
        """Return the knob's marker of a class, or else that of the nearest enclosing group that has one."""
        fields = (*self.fields, *reversed(self.above))
        return next((mark for info in fields for mark in _marks_in(info) if isinstance(mark, kind)), None)

    @property
    def default(self) -> object:
        """The default in the form of `active_knobs`. For a selector, this is the `type` of the default group."""
        default: object = (self.above[-1] if self.is_selector else self.fields[0]).default
        if self.is_selector and default is not None:
            selector = self.name.rpartition(".")[2]
            return default[selector] if isinstance(default, Mapping) else getattr(default, selector, default)
        return list(default) if isinstance(default, tuple) else default


@cached
def knobs_of(group: type[Settings]) -> Mapping[str, Knob]:
    """Return every knob by its dotted name. Selectors come before the knobs that they govern."""
    return {knob.name: knob for knob in _knobs({"": group}, "", (), None)}


@cached
def unions_of(group: type[Settings]) -> Mapping[str, Groups]:
    """Return the groups of every field that contains one of several groups, by the field's dotted name."""
    return dict(_unions(group, ""))


def _marks_in(info: FieldInfo) -> Iterator[object]:
    """Yield the markers of a field, including those within its type."""
    yield from info.metadata
    # pydantic stores only the markers of the outermost Annotated in `metadata`. Those of inner types are in its
    # arguments.
    types = [info.annotation]
    while types:
        arguments = get_args(types.pop())
        types += arguments
        yield from arguments


def _unions(group: type[Settings], prefix: str) -> Iterator[tuple[str, Groups]]:
    """Yield every field below a group that contains one of several groups, with its dotted name."""
    for field in fields_of(group):
        if union := field.union:
            yield f"{prefix}{field.name}", union
            for member in union.members.values():
                yield from _unions(member, f"{prefix}{field.name}.")
        elif field.group:
            yield from _unions(field.group, f"{prefix}{field.name}.")


def _knobs(
    groups: Mapping[str, type[Settings]],
    prefix: str,
    above: tuple[FieldInfo, ...],
    of_group: OnlyWith | None,
    selector: str | None = None,
) -> Iterator[Knob]:
    """Yield all knobs of a group, or of the groups of a union, keyed by the values of the selector.

    of_group: the condition under which the group exists, with the full name of its selector.
    """
    # Members of a union may declare the same knob, so the fields of all members are collected by name.
    declared: dict[str, dict[str, SettingsField]] = {}
    for kind, group in groups.items():
        for field in fields_of(group):
            declared.setdefault(field.name, {})[kind] = field
    excluding = {
        name: OnlyWith(f"{prefix}{field.name}.{union.selector}", without(name, union))
        for fields in declared.values()
        for field in fields.values()
        if (union := field.union) and union.selector
        for member in union.members.values()
        for name in member.excludes()
    }
    for name, fields in declared.items():
        infos = tuple(field.info for field in fields.values())
        first = next(iter(fields.values()))
        path = f"{prefix}{name}"
        # The nearest condition counts: another group that excludes the field, its own marker, the union's type, then
        # the group.
        exists = excluding.get(name) or _marked(first, prefix)
        if selector is not None and name != selector:
            exists = exists or OnlyWith(f"{prefix}{selector}", tuple(fields))
        exists = exists or of_group
        within = (*above, first.info)
        if name == selector:
            meanings = {kind: first_sentence(groups[kind]) for kind in fields}
            # The values of a selector are described by the docstrings of the groups that they select.
            yield replace(_knob(path, joined_meanings(meanings), infos, of_group, above), is_selector=True)
        elif union := first.union:
            yield from _knobs(union.members, f"{path}.", within, exists, union.selector)
        elif first.group:
            inner = {kind: held for kind, field in fields.items() if (held := field.group)}
            yield from _knobs(inner, f"{path}.", within, exists)
        else:
            meanings = {kind if selector else "": field.info.description or "" for kind, field in fields.items()}
            yield _knob(path, joined_meanings(meanings), infos, exists, above)


def _knob(
    name: str, description: str, fields: tuple[FieldInfo, ...], exists: OnlyWith | None, above: tuple[FieldInfo, ...]
) -> Knob:
    return Knob(name, description, fields, exists.selector if exists else None, exists.values if exists else (), above)


def _marked(field: SettingsField, prefix: str) -> OnlyWith | None:
    """Return the condition of a field's own marker, with the full name of the selector."""
    if field.only_with:
        return replace(field.only_with, selector=f"{prefix}{field.only_with.selector}")
    explained_by = field.if_chosen and field.if_chosen.explained_by
    return OnlyWith(explained_by) if explained_by else None


def first_sentence(group: type[BaseModel]) -> str:
    """Return the first sentence of a class's docstring, without its full stop."""
    return re.split(r"\. (?=[A-Z])", " ".join((group.__doc__ or "").split()), maxsplit=1)[0].rstrip(".")


def joined_meanings(meanings: Mapping[str, str]) -> str:
    """Return `a, b: one meaning | c: another`, or the meaning alone if its kind is ""."""
    by_meaning: dict[str, list[str]] = {}
    for kind, meaning in meanings.items():
        by_meaning.setdefault(meaning, []).append(kind)
    named = ((", ".join(filter(None, kinds)), meaning) for meaning, kinds in by_meaning.items())
    return " | ".join(f"{kinds}: {meaning}" if kinds else meaning for kinds, meaning in named)
