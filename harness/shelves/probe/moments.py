"""Bias and variance of gradient estimates, from inner products alone, without the bias that noise puts into them.

R independent estimates g_r of an objective's gradient have mean mu and covariance S. M independent estimates h_m have
the gradient of the expected reward, gamma, as their mean. The expected product of independent estimates is the product
of their means, so these are unbiased:

    |mu|^2       mean of <g_r, g_s> over r != s  =  (|sum g|^2 - sum |g_r|^2) / (R (R - 1))
    |gamma|^2    likewise
    <mu, gamma>  mean of <g_r, h_m>
    tr S         mean of |g_r|^2, minus the first

(The plain |mean g|^2 exceeds |mu|^2 by tr S / R, which pulls a plain cosine towards 0.) The statistics are

    cosine           <mu, gamma> / (|mu| |gamma|): 1 if the objective has no bias of direction
    noise_to_signal  tr S / |mu|^2: falls as 1 / batch size
    estimate_cosine  mean of <g_r, gamma> / (|g_r| |gamma|), an estimate of length 0 counting as 0
    mean_norm        |mu|

Noise can carry them out of their ranges (a cosine of 1.003). They are NaN if it makes a squared norm negative. As
ratios of unbiased estimates they have a bias themselves, of second order in the noise.

Intervals are those of the jackknife over blocks of estimates and over the h_m, added up as variances. The jackknife
needs no random numbers, and errs towards too wide for such statistics (Efron and Stein 1981, Annals of Statistics
9:586). A bootstrap would pair an estimate with its own copies.

`EstimateTally` gathers the inner products of gradient estimates, so that only a few sums of estimates are held at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class InnerProducts:
    """Inner products of R estimates, in K blocks of about equal size, and M reference estimates."""

    norms: Array
    """[R] |g_r|"""
    blocks: NDArray[np.int64]
    """[R] the block of each, from 0 to K - 1."""
    block_sums: Array
    """[K, K] <G_k, G_l> of the blocks' sums G."""
    with_reference: Array
    """[R, M] <g_r, h_m>"""
    reference: Array
    """[M, M] <h_m, h_n>"""


class NoiseInterval(NamedTuple):
    """A value with its interval; None where noise hides them."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Statistic:
    """A statistic with its jackknife values.

    Statistics of the same blocks can be compared: their common noise cancels.
    """

    value: float
    without_block: Array
    """[K]"""
    without_reference: Array
    """[M]"""

    def log(self) -> Statistic:
        value = float(_log(np.array(self.value)))
        return Statistic(value, _log(self.without_block), _log(self.without_reference))

    def __sub__(self, other: Statistic) -> Statistic:
        return Statistic(
            self.value - other.value,
            self.without_block - other.without_block,
            self.without_reference - other.without_reference,
        )

    def interval(self) -> NoiseInterval:
        """Return the value with its 95 % interval, by Student's t."""
        from scipy.stats import t

        if not np.isfinite(self.value):
            return NoiseInterval(None, None, None)
        variance = _jackknife_variance(self.without_block) + _jackknife_variance(self.without_reference)
        if not np.isfinite(variance):
            return NoiseInterval(self.value, None, None)
        # The smaller number of replicates bounds the degrees of freedom, which errs towards a wide interval.
        freedom = min(len(self.without_block), len(self.without_reference)) - 1
        half = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * variance**0.5
        return NoiseInterval(self.value, self.value - half, self.value + half)


def exponential(interval: NoiseInterval) -> NoiseInterval:
    """Return the interval of a value from that of its logarithm."""
    return NoiseInterval(*(None if bound is None else float(np.exp(bound)) for bound in interval))


class Statistics(NamedTuple):
    """The four statistics of the module docstring."""

    cosine: Statistic
    noise_to_signal: Statistic
    estimate_cosine: Statistic
    mean_norm: Statistic


def statistics(products: InnerProducts) -> Statistics:
    """Compute the four statistics. Raises ValueError for fewer than two blocks or reference estimates."""
    blocks, references = len(products.block_sums), len(products.reference)
    if blocks < 2 or references < 2:
        raise ValueError(f"{blocks} blocks and {references} reference estimates: at least 2 of each are needed")
    all_blocks, all_references = np.ones(blocks, bool), np.ones(references, bool)
    full = _values(products, all_blocks, all_references)
    without_block = [_values(products, _without(all_blocks, index), all_references) for index in range(blocks)]
    without_reference = [_values(products, all_blocks, _without(all_references, index)) for index in range(references)]
    return Statistics(
        *(
            Statistic(value, np.array(by_block), np.array(by_reference))
            for value, by_block, by_reference in zip(
                full, zip(*without_block, strict=True), zip(*without_reference, strict=True), strict=True
            )
        )
    )


def reference_statistics(reference: Array) -> tuple[float, float] | None:
    """Return |gamma| and the noise of the mean of M reference estimates, tr S / (M |gamma|^2).

    reference [M, M]: their inner products. None where the noise hides gamma.
    """
    squared = _squared_norm_of_mean(reference.sum(), np.diag(reference))
    if squared <= 0:
        return None
    return squared**0.5, float(np.diag(reference).mean() - squared) / len(reference) / squared


def _values(products: InnerProducts, blocks: NDArray[np.bool_], references: NDArray[np.bool_]) -> tuple[float, ...]:
    """Compute the statistics of some blocks and some reference estimates (bool masks)."""
    rows = blocks[products.blocks]
    norms = products.norms[rows]
    squared = _squared_norm_of_mean(products.block_sums[np.ix_(blocks, blocks)].sum(), norms**2)
    reference = products.reference[np.ix_(references, references)]
    reference_norm = _root(_squared_norm_of_mean(reference.sum(), np.diag(reference)))
    along = products.with_reference[rows][:, references].mean(1)
    # An estimate of length 0 has no direction and counts as a cosine of 0.
    units = np.divide(along, norms, out=np.zeros_like(along), where=norms > 0)
    norm = _root(squared)
    return (
        float(along.mean()) / (norm * reference_norm),
        (float((norms**2).mean()) - squared) / norm**2,
        float(units.mean()) / reference_norm,
        norm,
    )


def _squared_norm_of_mean(squared_norm_of_sum: float, squares: Array) -> float:
    """Estimate |mu|^2 without bias: only products of different estimates count."""
    count = len(squares)
    return float(squared_norm_of_sum - squares.sum()) / (count * (count - 1))


def _root(squared: float) -> float:
    return squared**0.5 if squared > 0 else float("nan")


def _without(mask: NDArray[np.bool_], index: int) -> NDArray[np.bool_]:
    rest = mask.copy()
    rest[index] = False
    return rest


def _jackknife_variance(values: Array) -> float:
    """Compute (n - 1) / n times the sum of squared deviations of the n leave-one-out values."""
    return float((len(values) - 1) * values.var())


def _log(values: Array) -> Array:
    logs: Array = np.log(np.where(values > 0, values, np.nan))
    return logs


BLOCKS = 16


class EstimateTally:
    """Sums up the R estimates of one objective, one by one. Holds up to 16 x D float32 numbers."""

    def __init__(self, estimates: int, reference: Tensor) -> None:
        """Start without estimates. reference [M, D]: independent estimates of the gradient of the expected reward."""
        self._reference = reference
        self._blocks = np.arange(estimates) * min(BLOCKS, estimates) // estimates
        self._sums = torch.zeros(int(self._blocks[-1]) + 1, reference.shape[1])
        self._norms: list[float] = []
        self._with_reference: list[list[float]] = []

    def add(self, gradient: Tensor) -> None:
        """Add the next estimate, [D]."""
        self._sums[self._blocks[len(self._norms)]] += gradient
        self._norms.append(float(gradient.double().norm()))
        self._with_reference.append((self._reference @ gradient).tolist())

    def inner_products(self) -> InnerProducts:
        """Return the inner products of all estimates. Raises ValueError if some are missing."""
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
    """Compute the inner products [K, K] of K vectors [K, D], in float64: they are subtracted from each other later."""
    wide = vectors.double()
    return np.asarray((wide @ wide.T).numpy(), np.float64)
