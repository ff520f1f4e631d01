"""Made-up batches of pairs, from made-up rollout batches."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.training.preference_update import PairBatch
from harness.training.sequences import Sequences
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, SAMPLES

PAIRS = GROUPS * SAMPLES // 2
REJECTED_WIDTH = 7


def pair_batch(seed: int = 0) -> PairBatch:
    """Two pairs a prompt: the first two of its four completions are chosen, the others rejected.

    The rejected ones are cut, so that the two sides are not equally wide.
    """
    made = rollouts.sequences(seed)
    place = torch.arange(GROUPS * SAMPLES) % SAMPLES
    chosen, rejected = (made.rows((place // 2 == half).nonzero()[:, 0]) for half in (0, 1))
    lengths = rejected.lengths.clamp(max=REJECTED_WIDTH)
    rejected = Sequences(rejected.prompts, rejected.completions[:, :REJECTED_WIDTH], lengths)
    return PairBatch(chosen, rejected, torch.arange(GROUPS).repeat_interleave(SAMPLES // 2))


def part(pairs: PairBatch, rows: Tensor) -> PairBatch:
    """Only some pairs (int64 indices)."""
    return PairBatch(pairs.chosen.rows(rows), pairs.rejected.rows(rows), pairs.groups[rows])


def moved_model() -> PreTrainedModel:
    """Not the starting weights: log-ratios to them are not 0, and the mean of those that KTO measures is positive."""
    model = rollouts.model()
    generator = torch.Generator().manual_seed(18)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * weight.std() * torch.randn(weight.shape, generator=generator))
    return model


def token_logps(policy: PreTrainedModel, side: Sequences, temperature: float) -> list[Tensor]:
    """The log-probs of every completion's tokens, row by row without padding."""
    return [rollouts.completion_logps(policy, side, row, temperature) for row in range(len(side.prompts))]
