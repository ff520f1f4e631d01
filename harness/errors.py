"""Errors a user can cause. The command line prints their message without a traceback and exits with their code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """Base of all errors that are told to the user. `exit_code` is that of design section 6."""

    exit_code = 1


class RefusedError(BenchError):
    """Refused before any cell started: usage, spec, missing data, model, engine, permission."""

    exit_code = 2


class GateError(BenchError):
    """The gate or the no-op guard refused: the arms would not answer the question."""

    exit_code = 3


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """The end of a sentence: `"; did you mean a, b?"` with the closest known names, `"."` when none is close."""
    matches = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    return f"; did you mean {', '.join(matches)}?" if matches else "."
