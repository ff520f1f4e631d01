"""The classes by which a shelf extends the command line, with objects in its `cli.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.plugins import on_shelves

if TYPE_CHECKING:
    from harness.records import SweepRecord

Added = TypeVar("Added")


@dataclass(frozen=True)
class Verb:
    """A verb of `bench`. `bench --help` lists it after the verbs of its group that are not on shelves."""

    group: str
    """A key of `harness.cli.app.GROUPS`."""
    run: Callable[..., None]
    """The function that typer calls. Its name, without a trailing underscore, is the name of the verb."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """Further words for `bench ls`, each with its kind in the form `module:NAME`."""


@dataclass(frozen=True)
class Reader:
    """A reader of other tools' results, for `bench compare`."""

    read: Callable[[str, Path, str | None], SweepRecord]
    """Maps (argument, folder to write records to, value of --metric) to the records."""


def added(kind: type[Added]) -> Iterator[Added]:
    """Yield the objects of this class with which shelves extend the command line."""
    for module in on_shelves("harness.cli"):
        yield from (thing for thing in vars(import_module(module)).values() if isinstance(thing, kind))
