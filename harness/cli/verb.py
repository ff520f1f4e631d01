"""What a shelf adds to the command line: objects of these classes in its `cli.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.plugins import on_shelves

if TYPE_CHECKING:
    from harness.evaluate.suite import Probe
    from harness.records import SweepRecord

Added = TypeVar("Added")


@dataclass(frozen=True)
class Verb:
    """A verb of `bench`. `bench --help` shows it behind those of its group that are not on shelves."""

    group: str
    """A key of `harness.cli.app.GROUPS`."""
    run: Callable[..., None]
    """The function that typer calls; its name is the verb's, without an underscore at the end."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """Words that `bench ls` takes besides, each with the place of its kind, `module:NAME`."""


@dataclass(frozen=True)
class Reader:
    """A reader of results that other tools wrote, for `bench compare`."""

    read: Callable[[str, Path, str | None], SweepRecord]
    """(what was given, the folder to write records to, the metric asked for) -> the records."""


@dataclass(frozen=True)
class StatementProbe:
    """What `bench eval --memorisation` asks of a model besides its tasks."""

    make: Callable[[int | None], Probe]
    """(the most tokens of a completion, if that was given) -> the probe."""
    show: Callable[[Sequence[dict[str, Any]]], None]
    """Prints its summaries, one of each task."""


def added(kind: type[Added]) -> Iterator[Added]:
    """Import what shelves add to the command line, and yield the objects of this class."""
    for module in on_shelves("harness.cli"):
        yield from (thing for thing in vars(import_module(module)).values() if isinstance(thing, kind))
