"""The URL of a search's database, as it may be written down."""

from __future__ import annotations

import re

_PASSWORDS = (re.compile(r"(://[^:@/?]*:)[^@]*(?=@)"), re.compile(r"([?&][^=&]*password=)[^&]*", re.IGNORECASE))
"""Before the host, or among the driver's options."""


def without_password(url: str) -> str:
    """The URL with *** for its passwords."""
    for password in _PASSWORDS:
        url = password.sub(r"\1***", url)
    return url
