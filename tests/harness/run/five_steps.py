"""The golden run: five steps on two prompts, whose numbers are frozen in tests/golden/five_steps.json."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from harness.config.hashing import NUMERICS_VERSION
from harness.config.model_source import parse_source
from harness.records import CellRecord
from tests.harness.run.small import run_cell, small_spec

FROZEN = Path(__file__).parents[2] / "golden" / "five_steps.json"
SETTINGS: dict[str, Any] = {
    "train.steps": 5,
    "train.updates_per_rollout": 2,
    "train.learning_rate": 2e-4,
    "train.warmup_steps": 2,
    "train.lr_schedule": "cosine",
    "rollout.prompts_per_step": 2,
    "rollout.samples_per_prompt": 4,
    "eval.every": 0,
}


def five_steps() -> dict[str, Any]:
    """Every number of steps.jsonl and of the final scores, with what they were made from."""
    with tempfile.TemporaryDirectory() as folder:
        cell = CellRecord(Path(folder), "golden", 0, "0")
        run_cell(cell, small_spec(SETTINGS))
        return {
            "numerics_version": NUMERICS_VERSION,
            "model": parse_source("builtin:tiny").fingerprint(),
            "steps": cell.read_steps(),
            "scores": cell.read_scores(),
        }
