"""Sweep files for tests, and cells that count as done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.plan import PlannedCell
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE
from harness.records.files import write_json

QUESTION: dict[str, Any] = {
    "name": "mine",
    "question": "Does it help?",
    "profile": "tiny",
    "ablate": ["objective.scale"],
    "base": {"algorithm": "grpo"},
    "arms": {"with": {}, "without": {"objective.scale": "none"}},
}


def write_sweep_file(folder: Path, **changes: Any) -> Path:
    """QUESTION with some keys changed, or left out where None, as a file. JSON is YAML."""
    document = {key: value for key, value in (QUESTION | changes).items() if value is not None}
    path = folder / "mine.yaml"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path


def finish(cell: PlannedCell, sweep_folder: Path) -> CellRecord:
    """A planned cell as if it were trained and evaluated, without any result."""
    record = cell.record(sweep_folder / "cells")
    record.path.mkdir(parents=True)
    write_json(record.path / EVALUATION_FILE, {"hash": cell.evaluation, "tasks": {}})
    record.write_status("done")
    return record
