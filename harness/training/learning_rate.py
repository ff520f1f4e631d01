"""The learning rate over a run, and over supervised training."""

from __future__ import annotations

import math
from collections.abc import Callable

from harness.spec.sections.train import TrainSpec

WARM_UP_FRAC = 0.05
LOWEST_FRAC = 0.02


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


def warm_up_and_decay(step: int, steps: int) -> float:
    """Learning-rate factor of step `step` (from 1) of supervised training: up over 5 % of the steps, while it falls
    linearly from the first step on, never below 2 %."""
    warm_up = min(1.0, step / max(1.0, WARM_UP_FRAC * steps))
    return warm_up * max(LOWEST_FRAC, 1 - (step - 1) / steps)
