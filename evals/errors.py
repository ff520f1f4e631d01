"""Errors a user can mend: each message says what was given, the rule, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EvalError(ValueError):
    """Base of all errors of this package that are the input's fault; a caller may print it without a traceback."""


class UnknownNameError(EvalError):
    """A name that is not in a registry; the message holds the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
        super().__init__(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")


class DataMissingError(EvalError):
    """Problems that are neither on the disk nor to be had from the hub."""
