"""Whether a model's weights have changed, without looking at them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def weight_version(model: nn.Module) -> int:
    """Grows with every in-place write to a weight or buffer: by an optimiser, by `load_state_dict` or by hand. torch
    counts the writes of each tensor; those through `.data`, and by fused optimisers, it does not see. Says nothing of
    two different models."""
    return sum(tensor._version for tensor in chain(model.parameters(), model.buffers()))
