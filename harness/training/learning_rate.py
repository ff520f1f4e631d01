"""The learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from harness.spec.sections.train import TrainSpec


def schedule(step: int, train: TrainSpec) -> float:
    """Learning-rate factor of rollout batch `step` (from 1): linear warm-up, then the named decay to 0 at the end."""
    if step <= train.warmup_steps:
        return step / train.warmup_steps
    decays: dict[str, Callable[[float], float]] = {
        "constant": lambda done: 1.0,
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return decays[train.lr_schedule]((step - 1 - train.warmup_steps) / max(1, train.steps - train.warmup_steps))
