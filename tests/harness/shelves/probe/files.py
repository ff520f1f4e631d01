"""Probe files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROBE: dict[str, Any] = {
    "name": "mine",
    "question": "Which of them?",
    "profile": "tiny",
    "base": {"rollout.prompts_per_step": 4, "rollout.samples_per_prompt": 4, "rollout.max_completion_tokens": 24},
    "objectives": {
        "leave_one_out": {"algorithm": "reinforce", "objective.baseline": "leave_one_out"},
        "group_mean": {"algorithm": "reinforce", "objective.baseline": "group_mean"},
        "no_baseline": {"algorithm": "reinforce", "objective.baseline": "none"},
    },
    "group_sizes": [2],
    "batch_sizes": [16, 64],
    "completions": 256,
    "reference": {"prompts": 64, "samples": 4},
}


def write_probe_file(folder: Path, **changes: Any) -> Path:
    """PROBE with some keys changed, or left out where None, as a file. JSON is YAML."""
    document = {key: value for key, value in (PROBE | changes).items() if value is not None}
    path = folder / "mine.yaml"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path
