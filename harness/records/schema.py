"""The version of the records of a sweep, its cells and registration, a search, and a kept report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.errors import RefusedError

SCHEMA = 4
"""Raised when the meaning of a record changes, so that no version misreads another's."""


class OtherVersionError(RefusedError):
    """A record that another version of bench made."""


def require_schema(path: Path, document: Mapping[str, object]) -> None:
    """Raise OtherVersionError unless this document, read from `path`, is of this version."""
    schema = document.get("schema")
    if schema == SCHEMA:
        return
    if isinstance(schema, int) and schema > SCHEMA:
        raise OtherVersionError("records.newer_version", path=path, schema=schema, known=SCHEMA)
    raise OtherVersionError("records.development_version", path=path)
