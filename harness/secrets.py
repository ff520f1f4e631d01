"""The secrets in use, and the one function that takes them out of what is shown or recorded.

Every stream of the command line and of workers, every error that users see and every writer of JSON passes `redact`.
Model text is left alone but for these secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TextIO
from urllib.parse import quote, unquote, urlsplit

_ALWAYS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY")
"""Variables that the libraries in use read by themselves."""
_FEWEST_CHARACTERS = 8
"""A shorter secret, such as the `EMPTY` of a local server, is part of other words."""
_NESTING = 2
"""How often a message is quoted within another one: an exception's in a document's, say."""
_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text.encode())[2:-1],
    lambda text: repr(text)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)
_shown_as: dict[str, str] = {}
"""The forms in which secrets appear -> what stands for them."""


def keep_variable(variable: str) -> None:
    """Keep out what an environment variable holds, if it is set: the whole value and each line of it."""
    value = os.environ.get(variable, "")
    for part in (value.strip(), *value.split()):
        keep(part, f"<{variable}>")


def keep_passwords_of(address: str) -> None:
    """Keep out the password in the address of a database or server, if there is one."""
    if password := urlsplit(address).password:
        keep(unquote(password), "***")


def keep(secret: str, shown_as: str = "***") -> None:
    """Keep a secret out of everything that is shown or recorded from here on."""
    if len(secret) < _FEWEST_CHARACTERS:
        return
    forms = {secret, quote(secret), quote(secret, safe="")}
    for _ in range(_NESTING):
        for escape in _ESCAPES:
            forms |= {escape(form) for form in forms}
    _shown_as.update(dict.fromkeys(forms, shown_as))


def redact(text: str) -> str:
    """Return the text with every known secret replaced."""
    if not _shown_as:
        return text
    for form in sorted(_shown_as, key=len, reverse=True):
        if form in text:
            text = text.replace(form, _shown_as[form])
    return text


def guard(stream: TextIO) -> None:
    """Let everything that is written to a stream pass `redact`."""
    if not hasattr(stream, "_unguarded_write"):
        stream._unguarded_write = write = stream.write  # type: ignore[attr-defined]
        stream.write = lambda text: write(redact(text))  # type: ignore[method-assign]


for _variable in _ALWAYS:
    keep_variable(_variable)
