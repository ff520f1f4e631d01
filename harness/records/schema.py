"""Records of other versions of bench: read where they say enough, refused in words where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.records.files import DamagedRecordError

SCHEMA = 1
"""Of sweep.json and the cells beside it; those of before it was written down are of the first. Raised when records come
to mean something else, so that neither version misreads the other's."""

# What older records lack and readers do without is not here: data, base_scores, best_of_n, contamination.
_NEEDED = (
    *("name", "question", "profile", "arms", "baseline", "metric", "margin_pp", "alpha", "seeds", "varied", "cells"),
    *("command", "tasks", "k", "gate", "warnings", "budget_tokens"),
)


def require_readable(path: Path, raw: Any) -> dict[str, Any]:
    """raw: the contents of the sweep.json at `path`. Raises DamagedRecordError if this version cannot read it."""
    if not isinstance(raw, dict):
        raise DamagedRecordError(f"{path}: is damaged: it holds no question. `bench run` writes it anew.")
    if raw.get("schema", SCHEMA) > SCHEMA:
        raise DamagedRecordError(
            f"{path}: was written by a newer version of bench (records of schema {raw['schema']}, this one reads up to "
            f"{SCHEMA}). Use that version."
        )
    if missing := [key for key in _NEEDED if key not in raw]:
        raise DamagedRecordError(
            f"{path}: lacks {', '.join(missing)}; an older version of bench wrote it. `bench run` writes it anew and "
            "trains no finished cell again."
        )
    return raw
