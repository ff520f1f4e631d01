"""Texts for users, kept apart from the code: each folder has a `words.toml`, with a template for each code.

For example, the text for the code `plan.no_checkpoint_yet` is `no_checkpoint_yet` in `harness/plan/words.toml`.
`bench.` stands for `harness` itself.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from harness import OUR_PACKAGES

_CODE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def said(code: str, /, **fields: object) -> str:
    """Return the text for a code, with its fields filled in. Raises KeyError for a code without a text."""
    words = template(code)
    if words is None:
        raise KeyError(code)
    return words.format(**fields)


def template(code: str) -> str | None:
    """Return the template of a code, or None if it is not one of bench's codes."""
    if not _CODE.fullmatch(code):
        return None
    room, _, name = code.rpartition(".")
    return words_of(room).get(name)


@functools.cache
def words_of(room: str) -> Mapping[str, str]:
    """Return the templates of a folder by their names, or {} if there is no such folder."""
    own = Path(__file__).parent
    top, *_ = parts = room.split(".")
    folder = own if room == "bench" else (own.parent if top in OUR_PACKAGES else own).joinpath(*parts)
    path = folder / "words.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
