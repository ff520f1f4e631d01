"""The redactor: every record, log, event and line of output passes it, and it replaces the secrets that it knows.

It knows environment variables whose names announce a secret, passwords in the addresses of other variables, and what is
passed to `register`. Worker processes inherit the environment, and so know the same.
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
"""Short texts, words and numbers, which are never masked.

They occur in other text, and replacing them would damage records.
"""
_PASSWORDS = (
    re.compile(r"(://[^:@/?\s]*:)(\S*)(?=@)"),
    re.compile(r"([?&][^=&\s]*password=)([^&\s]*)", re.IGNORECASE),
)
"""Passwords in front of the host, or among the driver's options."""
registered_variables: dict[str, None] = {}
"""Names for programs that import nothing of ours: they inherit the values, but not which are secret."""
_masks: dict[str, str] = {}
"""Each form of each secret -> its mask. Long forms come first, because one may contain another."""


def register(name: str, secret: str) -> None:
    """Replace this secret by `<name>` from now on.

    It is also replaced word by word, because a log may break it.
    """
    global _masks
    parts = [part for part in (secret, *secret.split()) if not _COMMON.fullmatch(part)]
    # The forms of each form, because a text may be encoded twice, as in the repr of a JSON document.
    forms = {twice for part in parts for once in _forms(part) for twice in _forms(once)}
    known = dict.fromkeys(forms, f"<{name}>") | _masks
    _masks = dict(sorted(known.items(), key=lambda item: -len(item[0])))


def register_variable(name: str) -> None:
    """Replace the value of an environment variable from now on, if it is set."""
    registered_variables[name] = None
    register(name, os.environ.get(name, ""))


def register_address(name: str, address: str) -> None:
    """Replace the passwords of an address from now on, also as the header of HTTP basic authentication."""
    for pattern in _PASSWORDS:
        for before, password in pattern.findall(address):
            for written in (password, unquote(password)):
                register(name, written)
                register(name, _basic(unquote(before.removeprefix("://").removesuffix(":")), written))


def _forms(secret: str) -> set[str]:
    """Return the forms in which messages and files show a text."""
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
    """Return a JSON document with all its strings redacted. Its keys stay, because readers look for them."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list | tuple) else value


def json_text(document: object, indent: int | None = None, ensure_ascii: bool = True, allow_nan: bool = True) -> str:
    """Return the document as redacted JSON, with these options of json.dumps."""
    # Redact the strings, not the JSON text: a replacement there could break an escape.
    shown = redacted(document) if _masks else document
    return json.dumps(shown, indent=indent, ensure_ascii=ensure_ascii, allow_nan=allow_nan)


def copy_redacted(source: int, target: int) -> None:
    """Copy from one file descriptor to another as text arrives, until the source ends."""
    longest, kept = max(map(len, _masks), default=1), ""
    while chunk := os.read(source, 65536):
        text = redact(kept + os.fsdecode(chunk))
        # The end may be the beginning of a secret, whose rest the next read brings.
        lengths = range(min(longest - 1, len(text)), 0, -1)
        held = next((n for n in lengths if any(form.startswith(text[-n:]) for form in _masks)), 0)
        kept = text[len(text) - held :]
        _write(target, text[: len(text) - held])
    _write(target, kept)


def _write(target: int, text: str) -> None:
    content = os.fsencode(text)
    while content:
        # os.write may write only a part.
        content = content[os.write(target, content) :]


class _Redacting:
    """An output stream that redacts what is written."""

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
    """Redact what this process prints from now on, tracebacks included."""
    sys.stdout, sys.stderr = _Redacting(sys.stdout), _Redacting(sys.stderr)


def without_password(text: str, address: str = "") -> str:
    """Return the text with *** for the passwords of addresses in it.

    The password of `address` is replaced wherever it occurs.
    """
    for secret in (found[2] for pattern in _PASSWORDS for found in pattern.finditer(address)):
        for written in {secret, unquote(secret)}:
            # A shorter password is part of other words.
            if len(written) > 3:
                text = text.replace(written, "***")
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text


def _register_environment() -> None:
    for name, value in os.environ.items():
        register_address(name, value)
        # A value that is the path of a file with the secret is itself no secret.
        # os.path.exists, because Path.exists() raises for a value longer than a file name may be.
        if _NAMES.search(name) and not os.path.exists(value):  # noqa: PTH110
            register(name, value)
    # MLflow sends these two as basic authentication, so the encoded pair is a secret too.
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD"))
    if password:
        register("MLFLOW_TRACKING_PASSWORD", _basic(user, password))


_register_environment()
