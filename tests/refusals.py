"""Expectations of errors by their codes and fields, never by their words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.errors import WordedError
from harness.settings.faults import FaultyError


@contextmanager
def refuses(
    kind: type[BaseException] | tuple[type[BaseException], ...], code: str, /, **fields: object
) -> Iterator[pytest.ExceptionInfo[WordedError]]:
    """Expect an error of this kind, and this code in it or in what it was made of.

    code: one of `words.toml`. Or that of a `Fault` or a type of pydantic's, whose only field is `path`. fields: those
    that must have these values; there may be more. A path is compared by its name.
    """
    with pytest.raises(kind) as raised:
        yield raised  # type: ignore[misc]
    found = [(one, {name: values[name] for name in fields if name in values}) for one, values in codes_of(raised.value)]
    assert (code, fields) in found, f"{found}\n{raised.value!r}"


def codes_of(error: BaseException | None) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the codes and the fields of an error, of those that it lists, and of the one that it was raised for."""
    if isinstance(error, WordedError):
        yield error.code, {n: value.name if isinstance(value, Path) else value for n, value in error.fields.items()}
        for cause in error.causes:
            yield from codes_of(cause)
    if isinstance(error, FaultyError):
        for fault in error.faults:
            yield fault.code, {"path": fault.path}
    if isinstance(error, ValidationError):
        for detail in error.errors():
            yield detail["type"], {"path": ".".join(map(str, detail["loc"]))}
            yield from codes_of(detail.get("ctx", {}).get("error"))
    if error is not None:
        yield from codes_of(error.__cause__ or error.__context__)
