"""The redactor, which replaces known secrets in every record, log, event and line of output.

It knows environment variables whose names indicate a secret, passwords in the addresses of other variables, and what is
passed to `register`. Worker processes inherit the environment, so they know the same secrets.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO
from urllib.parse import quote, quote_plus, unquote

_NAMES = re.compile(r"(API_?KEY|ACCESS_KEY|SECRET_KEY|SECRET|TOKEN|PASSWORD|PASSWD)$", re.IGNORECASE)
_COMMON = re.compile(r".{,7}|[a-z]{,15}|\d{,15}", re.DOTALL)
"""Matches short texts, words and numbers, which are never masked.

They occur in other text, and replacing them would damage records.
"""
_PASSWORDS = (
    re.compile(r"(://[^:@/?\s]*:)(\S*)(?=@)"),
    re.compile(r"([?&][^=&\s]*password=)([^&\s]*)", re.IGNORECASE),
)
"""Match passwords before the host, and among the options of the driver."""
registered_variables: dict[str, None] = {}
"""The names of variables with secrets, for programs that inherit the environment but import nothing of bench."""
_masks: dict[str, str] = {}
"""Maps each form of each secret to its mask. Long forms come first, because one form may contain another."""


def register(name: str, secret: str) -> None:
    """Replace this secret by `<name>` from now on.

    Each of its words is also replaced, because a log may break the secret into lines.
    """
    global _masks
    parts = [part for part in (secret, *secret.split()) if not _COMMON.fullmatch(part)]
    # Forms of forms are included, because a text may be encoded twice, as in the repr of a JSON document.
    forms = {twice for part in parts for once in _forms(part) for twice in _forms(once)}
    known = dict.fromkeys(forms, f"<{name}>") | _masks
    _masks = dict(sorted(known.items(), key=lambda item: -len(item[0])))


def register_variable(name: str) -> None:
    """Replace the value of an environment variable, if it is set, from now on."""
    registered_variables[name] = None
    register(name, os.environ.get(name, ""))


def register_address(name: str, address: str) -> None:
    """Replace the passwords in an address from now on, including in the header of HTTP basic authentication."""
    for pattern in _PASSWORDS:
        for before, password in pattern.findall(address):
            for written in (password, unquote(password)):
                register(name, written)
                register(name, _basic(unquote(before.removeprefix("://").removesuffix(":")), written))


def _forms(secret: str) -> set[str]:
    """Return the forms in which a text may appear in messages and files."""
    quoted = {quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace"), html.escape(secret)}
    as_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {secret, repr(secret)[1:-1], repr(os.fsencode(secret))[2:-1], *quoted, *as_json}


def _basic(user: str, password: str) -> str:
    return base64.b64encode(os.fsencode(f"{user}:{password}")).decode()


def redact(text: str) -> str:
    for form, mask in _masks.items():
        text = text.replace(form, mask)
    return text


def redacted(value: object) -> Any:
    """Return a JSON document with all its strings redacted. Its keys are kept, because readers look them up."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list | tuple) else value


def json_text(document: object, indent: int | None = None, ensure_ascii: bool = True, allow_nan: bool = True) -> str:
    """Return a document as redacted JSON, with these options of json.dumps."""
    # The strings are redacted instead of the JSON text, in which a replacement could break an escape sequence.
    shown = redacted(document) if _masks else document
    return json.dumps(shown, indent=indent, ensure_ascii=ensure_ascii, allow_nan=allow_nan)


def copy_redacted(source: int, target: int) -> None:
    """Copy text from one file descriptor to another, redacted, as it arrives, until the source ends."""
    longest, kept = max(map(len, _masks), default=1), ""
    while chunk := os.read(source, 65536):
        text = redact(kept + os.fsdecode(chunk))
        # The end of the text may be the beginning of a secret, whose rest comes with the next read.
        lengths = range(min(longest - 1, len(text)), 0, -1)
        held = next((n for n in lengths if any(form.startswith(text[-n:]) for form in _masks)), 0)
        kept = text[len(text) - held :]
        _write(target, text[: len(text) - held])
    _write(target, kept)


def _write(target: int, text: str) -> None:
    content = os.fsencode(text)
    while content:
        # os.write may write only a part of the content.
        content = content[os.write(target, content) :]


class _Redacting:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(redact(text)))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_output() -> None:
    """Redact everything that this process prints from now on, including tracebacks."""
    sys.stdout, sys.stderr = _Redacting(sys.stdout), _Redacting(sys.stderr)


def without_password(text: str, address: str = "") -> str:
    """Return a text in which *** replaces the passwords of addresses.

    The password of `address` is replaced wherever it occurs.
    """
    for secret in (found[2] for pattern in _PASSWORDS for found in pattern.finditer(address)):
        for written in {secret, unquote(secret)}:
            # A shorter password may be part of other words.
            if len(written) > 3:
                text = text.replace(written, "***")
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text


def _register_environment() -> None:
    for name, value in os.environ.items():
        register_address(name, value)
        # A value that is the path of a file with the secret is not itself secret. os.path.exists is used, because
        # Path.exists() raises an error for a value that is longer than a file name may be.
        if _NAMES.search(name) and not os.path.exists(value):  # noqa: PTH110
            register(name, value)
    # MLflow sends these two values as basic authentication, so the encoded pair is a secret too.
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD"))
    if password:
        register("MLFLOW_TRACKING_PASSWORD", _basic(user, password))


_register_environment()
