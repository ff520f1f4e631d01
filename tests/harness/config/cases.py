"""A complete spec in as few settings as possible."""

from __future__ import annotations

from typing import Any

from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec

MINIMAL: dict[str, Any] = {
    "algorithm": "grpo",
    "model.source": "builtin:tiny",
    "task.train": "arithmetic",
    "rollout.max_completion_tokens": 40,
    "train.steps": 5,
    "train.learning_rate": 3e-4,
    "eval.max_completion_tokens": 40,
}


def spec(*overrides: dict[str, Any], seed: int = 0, **settings: Any) -> RunSpec:
    """MINIMAL with layers on top: `spec({"train.steps": 3})`."""
    layers = [MINIMAL, *overrides, settings]
    return resolve([Layer(f"layer {i}", layer) for i, layer in enumerate(layers)], seed)
