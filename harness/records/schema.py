"""Records of other versions of bench: read where they say enough, refused in words where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from harness.records.files import DamagedRecordError, typed_rows

SCHEMA = 1
"""Of sweep.json and the cells beside it; those of before it was written down are of the first. Raised when records come
to mean something else, so that neither version misreads the other's."""

# What older records lack and readers do without is not here: data, base_scores, best_of_n, contamination.
_NEEDED: dict[str, Any] = {
    **dict.fromkeys(("name", "question", "profile", "baseline", "metric", "command"), str),
    **dict.fromkeys(("arms", "seeds", "cells", "tasks", "k", "warnings"), list),
    **dict.fromkeys(("margin_pp", "alpha"), int | float),
    **dict.fromkeys(("varied", "gate"), dict),
    "budget_tokens": int | None,
}


class _Cell(TypedDict):
    arm: str
    seed: int
    hash: str
    dir: str


def require_readable(path: Path, raw: Any) -> dict[str, Any]:
    """raw: the contents of the sweep.json at `path`. Raises DamagedRecordError if this version cannot read it."""
    if not isinstance(raw, dict):
        raise DamagedRecordError(f"{path}: is damaged: it holds no question. `bench run` writes it anew.")
    if not isinstance(raw.get("schema", SCHEMA), int):
        raise DamagedRecordError(f"{path}: is damaged: its schema is no number. `bench run` writes it anew.")
    if raw.get("schema", SCHEMA) > SCHEMA:
        raise DamagedRecordError(
            f"{path}: was written by a newer version of bench (records of schema {raw['schema']}, this one reads up to "
            f"{SCHEMA}). Use that version."
        )
    if missing := sorted(key for key in _NEEDED if key not in raw):
        raise DamagedRecordError(
            f"{path}: lacks {', '.join(missing)}; an older version of bench wrote it. `bench run` writes it anew and "
            "trains no finished cell again."
        )
    if wrong := [key for key, kind in _NEEDED.items() if not isinstance(raw[key], kind)]:
        raise DamagedRecordError(
            f"{path}: is damaged: it holds something else in {', '.join(wrong)}. `bench run` writes it anew."
        )
    typed_rows(path, raw["cells"], _Cell)
    if strangers := sorted({raw["baseline"], *(cell["arm"] for cell in raw["cells"])} - {*map(str, raw["arms"])}):
        raise DamagedRecordError(
            f"{path}: is damaged: {', '.join(strangers)} is its baseline or the arm of a cell, but not among its arms "
            f"{', '.join(map(str, raw['arms']))}. `bench run` writes it anew."
        )
    return raw
