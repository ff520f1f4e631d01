"""Expectations of errors by their codes and fields, never by their words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.errors import WordedError


@contextmanager
def refuses(
    kind: type[BaseException] | tuple[type[BaseException], ...], code: str, /, **fields: object
) -> Iterator[pytest.ExceptionInfo[WordedError]]:
    """Expect an error of this kind and code.

    fields: those that must have these values; there may be more. A path is compared by its name.
    """
    with pytest.raises(kind) as raised:
        yield raised  # type: ignore[misc]
    error = raised.value
    assert isinstance(error, WordedError), repr(error)
    found = {name: error.fields[name] for name in fields}
    found = {name: value.name if isinstance(value, Path) else value for name, value in found.items()}
    assert (error.code, found) == (code, fields), str(error)
