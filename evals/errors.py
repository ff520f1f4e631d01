"""Errors that a user can fix: each message states the value, the rule, and the remedy."""

from __future__ import annotations

from harness.errors import RefusedError


class EvalError(RefusedError, ValueError):
    """The base class of this package's errors.

    It is also a ValueError, so that validating a spec reports it together with the spec's other faults.
    """


class DataMissingError(EvalError):
    """The problems are neither on disk nor available from the hub."""
