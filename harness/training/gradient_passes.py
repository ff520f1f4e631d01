"""The forward and backward passes of an update: their time and how much of them is padding."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.training.sequences import PassTokens
from harness.training.update_report import UpdateReport


@dataclass
class GradientPasses:
    """Counts of all passes with gradient of one update, those of a try that ran out of memory included."""

    backward_s: float = 0.0
    _tokens: list[PassTokens] = field(default_factory=list)

    def backward(self, loss: Tensor, tokens: PassTokens) -> None:
        """Add the gradient of a micro-batch's loss to the weights'."""
        started_s = _now_s(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self.backward_s += _now_s(loss) - started_s
        self._tokens.append(tokens)

    def write(self, report: UpdateReport) -> None:
        computed = sum(tokens.computed for tokens in self._tokens)
        report.backward_s = self.backward_s
        report.padding_frac = sum(tokens.padding for tokens in self._tokens) / computed if computed else None


def _now_s(tensor: Tensor) -> float:
    """Wall-clock, when all work on the tensor's device is done: a GPU runs behind the host."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
