"""study.json as a file: what is drawn on the search's page, written anew after each trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.records.files import DamagedRecordError, read_json


def earlier_document(path: Path) -> dict[str, Any]:
    """What stands in study.json; nothing if it is not there or damaged, as it is written anew."""
    try:
        document = read_json(path) if path.exists() else {}
    except DamagedRecordError:
        return {}
    return document if isinstance(document, dict) else {}
