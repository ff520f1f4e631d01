"""Sweep files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
