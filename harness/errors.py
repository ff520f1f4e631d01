"""Errors that a user can cause.

The command line prints their message without a traceback and exits with their code.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType

from harness.secrets import redact
from harness.words import template


class WordedError(Exception):
    """An error with a code and fields for programs, and a text for users.

    The text comes from the `words.toml` of the code's folder, see `harness.words`. A user's own file has no
    `words.toml`, so it passes a sentence instead of a code.
    """

    code: str
    """The code, or "" if the error was raised with a sentence."""
    fields: Mapping[str, object]
    """The values of the template's fields, by name."""
    causes: tuple[WordedError, ...] = ()
    """If this error lists several others: these errors."""

    def __init__(self, code: str, /, **fields: object) -> None:
        """Create the error with the text of the code. code: if it is not a known code, it is used as the text."""
        words = template(code)
        self.code, self.fields = "" if words is None else code, fields
        super().__init__(code if words is None else words.format(**fields))

    def __str__(self) -> str:
        return redact(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        # Another process gets fields that are not numbers as text, because exceptions and models may not be picklable.
        plain = {name: value if isinstance(value, int | float) else str(value) for name, value in self.fields.items()}
        return _unpickled, (type(self), self.args), self.__dict__ | {"fields": plain}


def _unpickled(kind: type[WordedError], args: tuple[str, ...]) -> WordedError:
    """Return an error without calling __init__, whose parameters differ from `args`."""
    return kind.__new__(kind, *args)


class BenchError(WordedError):
    """The base class of all errors that end a command. For `exit_code`, see docs/reference."""

    exit_code = 1


class RefusedError(BenchError):
    """A refusal before any cell started: usage, spec, missing data, model, engine or permission."""

    exit_code = 2


class GateError(BenchError):
    """A refusal by the gate or the no-op guard: the arms would not answer the question."""

    exit_code = 3


class InvalidError(WordedError, ValueError):
    """A validator refuses a value or a pair of values. pydantic reports it together with the other faults of a spec."""


class UnknownNameError(RefusedError, ValueError):
    """An unknown name. The message contains up to three similar names and the command that lists all names.

    It is also a ValueError, so that pydantic reports it together with the other faults of a spec.
    """

    def __init__(self, noun: str, name: str, known: Collection[str], listed_by: str | None = None) -> None:
        """Create the error. listed_by: the command that lists all names. None lists some known names instead."""
        rest = f"`{listed_by}` lists all." if listed_by else f"There {'is' if len(known) == 1 else 'are'} {few(known)}."
        likely = nearest(name, known)
        super().__init__("bench.unknown_name", noun=noun, name=shown(name), nearest=likely, rest=rest)


class Faults:
    """A collector of faults, one line each, so that all of them are reported at once.

    Use `with faults: check()` for one check after another, then `faults.refuse()`.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[RefusedError] = []
        """The errors that the lines come from. Lines may also be added without an error."""

    def __enter__(self) -> Faults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, RefusedError):
            self.add(error)
        # Returning True suppresses the exception, so that the next check runs too. Other exceptions are raised.
        return isinstance(error, RefusedError)

    def add(self, error: RefusedError) -> None:
        """Add the lines of an error, and the error itself, which has the code."""
        self.lines += str(error).splitlines()
        self.errors.append(error)

    def refuse(self) -> None:
        """Raise RefusedError if any fault was collected."""
        if self.lines:
            # dict.fromkeys removes duplicates and keeps the order.
            refusal = RefusedError("\n".join(dict.fromkeys(self.lines)))
            refusal.causes = tuple(self.errors)
            raise refusal


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return the end of a sentence: `"; did you mean a, b or c?"`, or `"."` if no known name is similar.

    Dotted names are also compared by their last segments: `clip_high` is similar to `objective.rule.clip_high`.
    """
    names = list(dict.fromkeys(known)) if len(name) <= _LONGEST_NAME else []
    likeness = {one: difflib.SequenceMatcher(None, name, one).ratio() for one in names}
    close = {one for one, ratio in likeness.items() if ratio >= 0.6}
    last = name.rpartition(".")[2]
    close_to_last = difflib.get_close_matches(last, {one.rpartition(".")[2] for one in names}, cutoff=0.75)
    close |= {one for one in names if one.rpartition(".")[2] in close_to_last}
    # Ties are sorted by name, so that the message is the same every time.
    *others, final = sorted(close, key=lambda one: (-likeness[one], one))[:count] or [""]
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{final}?" if final else "."


_LONGEST_NAME = 200
"""The most characters in a name. Comparing a longer one with all names would take seconds."""


def few(names: Collection[str], most: int = 6) -> str:
    """Join names as `a, b and 12 more`, or return `none`."""
    # A single name beyond `most` is shown too, because "and 1 more" would hardly be shorter.
    shown = list(names)[: most if len(names) > most + 1 else len(names)]
    more = len(names) - len(shown)
    return f"{', '.join(shown) or 'none'}{f' and {more} more' if more else ''}"


def shown(value: object, most_characters: int = 120) -> str:
    """Return the repr of a value for a message. If it is long, return its beginning and end."""
    # Secrets are redacted before the text is shortened, because half of a secret would no longer be recognised.
    text = redact(repr(value))
    cut = len(text) - most_characters
    return text if cut <= 0 else f"{text[: most_characters - 20]}... ({cut:,} characters left out) ...{text[-20:]}"


def note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
