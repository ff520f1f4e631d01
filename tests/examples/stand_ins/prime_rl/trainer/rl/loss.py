"""What a loss of one's own gets from prime-rl and gives back; the names are prime-rl's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]
