"""AdamW as every update uses it: named groups of weights, clipped one by one, at the run's learning rate.

Weights of less than float32 have float32 masters, which are what is optimised: most steps of a weight are smaller than
half the distance to the next bfloat16, and would be lost. Their gradients are summed over micro-batches in float32 too.

The learning rate over a run, and over supervised training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.utils import clip_grad_norm_

from harness.config.run_spec import TrainSpec

ADAM_BETAS = (0.9, 0.999)


class DivergedError(Exception):
    """Loss, gradient or weights are no longer finite: a result, not a fault (the cell is scored and flagged)."""


class OptimizerStep(NamedTuple):
    """What one optimiser step saw."""

    loss: float
    grad_norms: dict[str, float]
    """Of each group of weights, before clipping."""


class ClippedAdamW:
    """Optimises groups of weights (name -> weights); those that take no gradient are left out.

    A weight of less than float32 is the rounding of its master, which starts as the weight is when this is made. Its
    `grad` is float32.
    """

    def __init__(self, train: TrainSpec, groups: Mapping[str, Iterable[nn.Parameter]]) -> None:
        self._train = train
        self._rounded: list[Tensor] = []
        self._masters: list[Tensor] = []
        self._groups = {
            name: [self._optimised(weight) for weight in weights if weight.requires_grad]
            for name, weights in groups.items()
        }
        # One kernel for all weights. On a CPU it would round in another way than what earlier results were made with.
        self._fused = all(weight.is_cuda for weights in self._groups.values() for weight in weights)
        self._adamw = self._new()
        # Never None: AdamW passes over weights without a gradient, so a step whose groups are all skipped would differ
        # between a process that has trained before and one that has just resumed.
        for weights in self._groups.values():
            for weight in weights:
                weight.grad = torch.zeros_like(weight)
        for rounded, master in zip(self._rounded, self._masters, strict=True):
            rounded.grad = None
            rounded.grad_dtype = torch.float32
            rounded.grad = master.grad  # the same tensor: what a backward pass adds to, and what AdamW reads

    def begin(self, step: int, **factors: float) -> dict[str, float]:
        """Get ready for rollout batch `step` (from 1); returns each group's learning rate.

        It is the scheduled one times the group's factor, 1 where none is given.
        """
        if self._train.optimizer_reset == "per_rollout":
            self._adamw = self._new()
        scheduled = self._train.learning_rate * schedule(step, self._train)
        rates = {name: scheduled * factors.get(name, 1.0) for name in self._groups}
        for group, rate in zip(self._adamw.param_groups, rates.values(), strict=True):
            group["lr"] = rate
        return rates

    def zero_grad(self) -> None:
        self._adamw.zero_grad(set_to_none=False)

    def step(self, loss: float) -> OptimizerStep:
        """Clip each group's gradient, which is that of this loss, to train.max_grad_norm, and move the weights.

        Raises DivergedError if the loss or a norm is not finite; no weight has moved then.
        """
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss}")
        norms = {
            name: float(clip_grad_norm_(weights, self._train.max_grad_norm)) for name, weights in self._groups.items()
        }
        for name, norm in norms.items():
            if not math.isfinite(norm):
                raise DivergedError(f"the norm of the {name}'s gradient is {norm}")
        self._adamw.step()
        if self._fused:
            # It writes behind autograd's back, and engines go by the count of writes: see `weight_version`.
            increment_version(weight for weights in self._groups.values() for weight in weights)
        if self._masters:
            with torch.no_grad():
                torch._foreach_copy_(self._rounded, self._masters)
        return OptimizerStep(loss, norms)

    def state_dict(self) -> dict[str, Any]:
        """AdamW's, and the masters in the order of the weights that have one."""
        return self._adamw.state_dict() | {"masters": [master.detach() for master in self._masters]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; the weights themselves are loaded elsewhere, and are the masters rounded."""
        self._adamw.load_state_dict({name: state[name] for name in ("state", "param_groups")})
        with torch.no_grad():
            for master, saved in zip(self._masters, state["masters"], strict=True):
                master.copy_(saved)

    def _optimised(self, weight: nn.Parameter) -> nn.Parameter:
        """What AdamW is to move for this weight: itself, or its master."""
        if torch.finfo(weight.dtype).bits >= 32:
            return weight
        master = nn.Parameter(weight.detach().float())
        self._rounded.append(weight)
        self._masters.append(master)
        return master

    def _new(self) -> torch.optim.AdamW:
        train = self._train
        groups = [{"params": weights} for weights in self._groups.values()]
        return torch.optim.AdamW(
            groups,
            lr=train.learning_rate,
            betas=ADAM_BETAS,
            weight_decay=train.weight_decay,
            fused=True if self._fused else None,
        )


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
