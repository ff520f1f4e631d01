"""The version of the records of a sweep, a search and a kept report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.errors import RefusedError

SCHEMA = 4
"""Increased whenever the meaning of a record changes, so that no version of bench misreads another's records."""


class OtherVersionError(RefusedError):
    """A record was written by another version of bench."""


def require_schema(path: Path, document: Mapping[str, object]) -> None:
    """Raise OtherVersionError unless this document, read from `path`, has the current version."""
    schema = document.get("schema")
    if schema == SCHEMA:
        return
    if isinstance(schema, int) and schema > SCHEMA:
        raise OtherVersionError("records.newer_version", path=path, schema=schema, known=SCHEMA)
    raise OtherVersionError("records.development_version", path=path)
