"""Words for people, apart from the code: each room has a `words.toml`, a template for each code.

The words of the code `plan.no_checkpoint_yet` are `no_checkpoint_yet` in `harness/plan/words.toml`. `bench.` stands for
`harness` itself.
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
    """Return the words of a code, with the fields in their braces. Raises KeyError for a code without words."""
    words = template(code)
    if words is None:
        raise KeyError(code)
    return words.format(**fields)


def template(code: str) -> str | None:
    """Return the words of a code with their braces, or None for what is no code of ours."""
    if not _CODE.fullmatch(code):
        return None
    room, _, name = code.rpartition(".")
    return words_of(room).get(name)


@functools.cache
def words_of(room: str) -> Mapping[str, str]:
    """Return the words of a room by their names; {} if there is no such room."""
    own = Path(__file__).parent
    top, *_ = parts = room.split(".")
    folder = own if room == "bench" else (own.parent if top in OUR_PACKAGES else own).joinpath(*parts)
    path = folder / "words.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
