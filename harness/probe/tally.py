"""Gathers the inner products of gradient estimates, so that no more than a few sums of them are held at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from harness.probe.moments import Array, InnerProducts

BLOCKS = 16


class Tally:
    """Takes the R estimates of one objective, one by one. Holds up to 16 x D float32 numbers."""

    def __init__(self, estimates: int, reference: Tensor) -> None:
        """reference [M, D]: independent estimates of the gradient of the expected reward."""
        self._reference = reference
        self._blocks = np.arange(estimates) * min(BLOCKS, estimates) // estimates
        self._sums = torch.zeros(int(self._blocks[-1]) + 1, reference.shape[1])
        self._norms: list[float] = []
        self._with_reference: list[list[float]] = []

    def add(self, gradient: Tensor) -> None:
        """The next estimate, [D]."""
        self._sums[self._blocks[len(self._norms)]] += gradient
        self._norms.append(float(gradient.double().norm()))
        self._with_reference.append((self._reference @ gradient).tolist())

    def inner_products(self) -> InnerProducts:
        """Of all estimates. ValueError if some are still to come."""
        if len(self._norms) < len(self._blocks):
            raise ValueError(f"{len(self._norms)} of {len(self._blocks)} estimates were added")
        return InnerProducts(
            norms=np.array(self._norms),
            blocks=self._blocks,
            block_sums=gram(self._sums),
            with_reference=np.array(self._with_reference),
            reference=gram(self._reference),
        )


def gram(vectors: Tensor) -> Array:
    """[K, K] inner products of K vectors [K, D]: they are differences of large numbers later, so in float64."""
    wide = vectors.double()
    return np.asarray((wide @ wide.T).numpy(), np.float64)
