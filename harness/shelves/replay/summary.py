"""The distribution of an objective's gradient: weights, clipping, and shares by length, correctness and difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.shelves.replay.stored import StoredStep
from harness.shelves.replay.weights import StoredTokenWeights
from harness.training.update_report import PASS_RATE_BINS, pass_rate_bin

LENGTH_BINS = 4
"""Bins hold equally many completions, as far as ties in length allow."""


@dataclass(frozen=True)
class WeightSummary:
    """The weights of one objective over the stored steps. Tokens count once per epoch."""

    tokens: int
    """All sampled tokens."""
    weight_mean: float | None
    """As the following four, over the tokens in the loss; None without any."""
    weight_abs_mean: float | None
    weight_p5: float | None
    """A percentile by nearest rank."""
    weight_p50: float | None
    weight_p95: float | None
    clipped_frac: float
    """Of all sampled tokens."""
    masked_frac: float
    guessed_frac: float
    gradient_share: dict[str, dict[str, float]] | None
    """Shares of the sum of absolute weights, by kind of bin and by bin; None if all weights are 0."""


@dataclass(frozen=True)
class Bins:
    """Partitions of completions: their names, and the bin of each row [N] of a stored step (int64)."""

    lengths: list[int]
    """Upper ends of the bins of completion tokens; the last is the longest completion."""

    @classmethod
    def of(cls, steps: Sequence[StoredStep]) -> Bins:
        """Choose bins of length that hold about equally many of these completions."""
        lengths = torch.cat([step.rollout.sequences.lengths for step in steps]).double()
        quantiles = torch.arange(1, LENGTH_BINS + 1, dtype=torch.float64) / LENGTH_BINS
        ends = torch.quantile(lengths, quantiles, interpolation="higher")
        # Equal quantiles make one bin, so ties in length leave fewer bins.
        return cls(sorted({int(end) for end in ends}))

    @property
    def names(self) -> dict[str, list[str]]:
        starts = [1, *(end + 1 for end in self.lengths[:-1])]
        return {
            "length_tokens": [f"{start}-{end}" for start, end in zip(starts, self.lengths, strict=True)],
            "correct": ["wrong", "right"],
            "pass_rate": list(PASS_RATE_BINS),
        }

    def places(self, step: StoredStep) -> dict[str, Tensor]:
        rollout = step.rollout
        return {
            "length_tokens": torch.bucketize(rollout.sequences.lengths, torch.tensor(self.lengths)),
            "correct": rollout.correct.long(),
            "pass_rate": pass_rate_bin(rollout.groups, rollout.correct),
        }


def token_shares(steps: Sequence[StoredStep], bins: Bins) -> dict[str, dict[str, float]]:
    """Return the share of all sampled tokens in each bin, the yardstick for shares of the gradient."""
    sizes = [step.rollout.sequences.lengths.double() for step in steps]
    return _shares_by_bin(sizes, steps, bins) or {}


def summarise(weighed: Sequence[StoredTokenWeights], steps: Sequence[StoredStep], bins: Bins) -> WeightSummary:
    """Summarise one objective over the stored steps."""
    in_loss, tokens, clipped, masked, guessed = [], 0, 0, 0, 0
    for some, step in zip(weighed, steps, strict=True):
        mask = step.rollout.sequences.mask.expand_as(some.weight)
        in_loss.append(some.weight[mask & ~some.masked].double())
        tokens += int(mask.sum())
        clipped += int(some.clipped.sum())
        masked += int(some.masked.sum())
        guessed += int(some.guessed.sum())
    weights = torch.cat(in_loss)
    sizes = [some.weight.double().abs().sum((0, 2)) for some in weighed]
    return WeightSummary(
        tokens=tokens,
        weight_mean=float(weights.mean()) if len(weights) else None,
        weight_abs_mean=float(weights.abs().mean()) if len(weights) else None,
        weight_p5=_percentile(weights, 5),
        weight_p50=_percentile(weights, 50),
        weight_p95=_percentile(weights, 95),
        clipped_frac=clipped / tokens,
        masked_frac=masked / tokens,
        guessed_frac=guessed / tokens,
        gradient_share=_shares_by_bin(sizes, steps, bins),
    )


def _percentile(values: Tensor, rank: int) -> float | None:
    """Return a percentile by nearest rank, or None without values."""
    count = len(values)
    # -(-a // b) rounds up, in integers.
    return float(values.kthvalue(max(1, -(-rank * count // 100))).values) if count else None


def _shares_by_bin(
    sizes: Sequence[Tensor], steps: Sequence[StoredStep], bins: Bins
) -> dict[str, dict[str, float]] | None:
    """Return the shares of sizes ([N] for each step) by bin, or None if all sizes are 0."""
    sums = {kind: torch.zeros(len(names), dtype=torch.float64) for kind, names in bins.names.items()}
    for size, step in zip(sizes, steps, strict=True):
        for kind, place in bins.places(step).items():
            sums[kind].index_add_(0, place, size)
    # Every completion is in one bin of each kind, so all kinds have the same sum.
    if not sums["correct"].sum() > 0:
        return None
    return {
        kind: dict(zip(names, (sums[kind] / sums[kind].sum()).tolist(), strict=True))
        for kind, names in bins.names.items()
    }
