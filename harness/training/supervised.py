"""Supervised training: the loop that the cold start and the reward model share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

Progress = Callable[[int, int, float], None]
"""on_step(step, steps, loss) is called after every step."""

WARM_UP_FRAC = 0.05
"""Fraction of the steps in which the learning rate rises."""
LOWEST_FRAC = 0.02
"""The decay stops at this fraction of the learning rate."""


def train_supervised(
    weights: Sequence[nn.Parameter],
    learning_rate: float,
    steps: int,
    losses: Callable[[], Iterable[Tensor]],
    on_step: Progress,
    weight_decay: float = 0.01,
) -> None:
    """Train weights with AdamW, with gradients clipped to a norm of 1.

    losses: called once per step. Yields the losses of the step's micro-batches one by one; they add up to its loss.
    """
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=weight_decay, betas=(0.9, 0.95))
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = 0.0
        for part in losses():
            # The losses come one by one, so that a micro-batch's graph is freed before the next is computed.
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * warm_up_and_decay(step, steps)
        optimizer.step()
        on_step(step, steps, loss)


def warm_up_and_decay(step: int, steps: int) -> float:
    """Return the factor on the learning rate at step `step` (from 1) of supervised training.

    It is the product of a linear warm-up over WARM_UP_FRAC of the steps, and a linear decay from the first step that
    stops at LOWEST_FRAC.
    """
    warm_up = min(1.0, step / max(1.0, WARM_UP_FRAC * steps))
    return warm_up * max(LOWEST_FRAC, 1 - (step - 1) / steps)
