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
    """An error with a code and fields for programs, and with words for people.

    The words are in the `words.toml` of the code's room, see `harness.words`. A file of a user's own has no such words:
    it gives a sentence in place of a code.
    """

    code: str
    """The code, or "" for an error that was raised with a sentence."""
    fields: Mapping[str, object]
    """Values for the braces of the template, by their names."""
    causes: tuple[WordedError, ...] = ()
    """The errors whose messages this one lists, for one that collects several."""

    def __init__(self, code: str, /, **fields: object) -> None:
        """Fill in the words of the code. code: what is not among the words is a sentence, and is taken as it is."""
        words = template(code)
        self.code, self.fields = "" if words is None else code, fields
        super().__init__(code if words is None else words.format(**fields))

    def __str__(self) -> str:
        return redact(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        # Another process gets a field that is no number as text: exceptions and models may not be picklable.
        plain = {name: value if isinstance(value, int | float) else str(value) for name, value in self.fields.items()}
        return _unpickled, (type(self), self.args), self.__dict__ | {"fields": plain}


def _unpickled(kind: type[WordedError], args: tuple[str, ...]) -> WordedError:
    """Return the error without calling its __init__, whose parameters are not `args`."""
    return kind.__new__(kind, *args)


class BenchError(WordedError):
    """The base class of all errors that end a command. `exit_code`: see docs/reference."""

    exit_code = 1


class RefusedError(BenchError):
    """A refusal before any cell started: usage, spec, missing data, model, engine or permission."""

    exit_code = 2


class GateError(BenchError):
    """A refusal by the gate or the no-op guard: the arms would not answer the question."""

    exit_code = 3


class InvalidError(WordedError, ValueError):
    """A value, or a pair of values, that a validator refuses; pydantic reports it with the other faults of a spec."""


class UnknownNameError(RefusedError, ValueError):
    """An unknown name; the message gives the nearest three names and the command that lists all.

    It is also a ValueError, so that pydantic reports it together with the other faults of a spec.
    """

    def __init__(self, noun: str, name: str, known: Collection[str], listed_by: str | None = None) -> None:
        """Build the message. listed_by: the listing command; without it, some of the known names are shown."""
        rest = f"`{listed_by}` lists all." if listed_by else f"There {'is' if len(known) == 1 else 'are'} {few(known)}."
        likely = nearest(name, known)
        super().__init__("bench.unknown_name", noun=noun, name=shown(name), nearest=likely, rest=rest)


class Faults:
    """A collector of faults, one line each, to show them all at once.

    Use `with faults: check()` for check after check, then `faults.refuse()`.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[RefusedError] = []
        """Where the lines come from, as far as they come from errors."""

    def __enter__(self) -> Faults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, RefusedError):
            self.add(error)
        # True suppresses the exception, so that the next check runs too. Other exceptions pass.
        return isinstance(error, RefusedError)

    def add(self, error: RefusedError) -> None:
        """Collect the lines of an error, and the error itself for its code."""
        self.lines += str(error).splitlines()
        self.errors.append(error)

    def refuse(self) -> None:
        """Raise RefusedError if any fault was collected."""
        if self.lines:
            # dict.fromkeys removes repeated lines and keeps their order.
            refusal = RefusedError("\n".join(dict.fromkeys(self.lines)))
            refusal.causes = tuple(self.errors)
            raise refusal


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return the end of a sentence: `"; did you mean a, b or c?"`, or `"."` if no known name is close.

    Dotted names are also compared by their last segments: `clip_high` is close to `objective.rule.clip_high`.
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
"""Characters. No name is longer, and comparing a longer one with all names would take seconds."""


def few(names: Collection[str], most: int = 6) -> str:
    """Join names as `a, b and 12 more`, or return `none`."""
    # A single name beyond `most` is shown too: "and 1 more" would hardly be shorter.
    shown = list(names)[: most if len(names) > most + 1 else len(names)]
    more = len(names) - len(shown)
    return f"{', '.join(shown) or 'none'}{f' and {more} more' if more else ''}"


def shown(value: object, most_characters: int = 120) -> str:
    """Return the repr of a value for a message; of a long one, the beginning and the end."""
    # Redact before cutting: the cut may leave half of a secret, which no longer matches.
    text = redact(repr(value))
    cut = len(text) - most_characters
    return text if cut <= 0 else f"{text[: most_characters - 20]}... ({cut:,} characters left out) ...{text[-20:]}"


def note(message: str) -> None:
    """Print a line for people to stderr."""
    print(message, file=sys.stderr, flush=True)
