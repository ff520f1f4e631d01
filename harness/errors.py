"""Errors a user can cause. The command line prints their message without a traceback and exits with their code."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterable
from types import TracebackType

from harness.secrets import redact


class BenchError(Exception):
    """The base of all errors that users see. `exit_code`: see docs/reference."""

    exit_code = 1

    def __str__(self) -> str:
        return redact(super().__str__())


class RefusedError(BenchError):
    """Refused before any cell started: usage, spec, missing data, model, engine, permission."""

    exit_code = 2


class GateError(BenchError):
    """The gate or the no-op guard refused: the arms would not answer the question."""

    exit_code = 3


class UnknownNameError(RefusedError, ValueError):
    """A name that nothing has; the message names the nearest three and the command that lists all.

    A ValueError too, so that a spec which names it is refused together with its other faults.
    """

    def __init__(self, noun: str, name: str, known: Collection[str], listed_by: str | None = None) -> None:
        """listed_by: the command; without one some of the known names are shown."""
        rest = f"`{listed_by}` lists all." if listed_by else f"There {'is' if len(known) == 1 else 'are'} {few(known)}."
        super().__init__(f"unknown {noun} {shown(name)}{nearest(name, known)} {rest}")


class Faults:
    """Gathers all faults, a line each, to show them at once: `with faults: check()`, check after check, then
    `faults.refuse()`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> Faults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, RefusedError):
            self.lines += str(error).splitlines()
        return isinstance(error, RefusedError)

    def refuse(self) -> None:
        """Raises RefusedError if there are any."""
        if self.lines:
            raise RefusedError("\n".join(dict.fromkeys(self.lines)))


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """The end of a sentence: `"; did you mean a, b or c?"` with the closest known names, `"."` where none is close.

    Dotted names are also compared by their last segments: `clip_high` is close to `objective.rule.clip_high`.
    """
    names = list(dict.fromkeys(known)) if len(name) <= _LONGEST_NAME else []
    likeness = {one: difflib.SequenceMatcher(None, name, one).ratio() for one in names}
    close = {one for one, ratio in likeness.items() if ratio >= 0.6}
    last = name.rpartition(".")[2]
    close_to_last = difflib.get_close_matches(last, {one.rpartition(".")[2] for one in names}, cutoff=0.75)
    close |= {one for one in names if one.rpartition(".")[2] in close_to_last}
    *others, final = sorted(close, key=lambda one: (-likeness[one], one))[:count] or [""]
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{final}?" if final else "."


_LONGEST_NAME = 200
"""Characters: nothing is called so, and comparing it with all names would take seconds."""


def few(names: Collection[str], most: int = 6) -> str:
    """`a, b and 12 more`, `none`."""
    shown = list(names)[: most if len(names) > most + 1 else len(names)]
    more = len(names) - len(shown)
    return f"{', '.join(shown) or 'none'}{f' and {more} more' if more else ''}"


def shown(value: object, most_characters: int = 120) -> str:
    """A value as it was given, for a message; of a long one the beginning and the end."""
    text = redact(repr(value))  # first, because a cut may leave half of a secret
    cut = len(text) - most_characters
    return text if cut <= 0 else f"{text[: most_characters - 20]}... ({cut:,} characters left out) ...{text[-20:]}"


def note(message: str) -> None:
    """Print a line for people, on stderr."""
    print(message, file=sys.stderr, flush=True)
