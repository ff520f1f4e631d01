"""Errors a user can mend: each message says what was given, the rule, and the remedy."""

from __future__ import annotations

from harness.errors import RefusedError


class EvalError(RefusedError, ValueError):
    """The base of this package's own errors.

    A ValueError too, so that a spec which names what is at fault is refused together with its other faults.
    """


class DataMissingError(EvalError):
    """The problems are neither on the disk nor to be had from the hub."""
