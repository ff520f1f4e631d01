"""Sampler correction: weights for the mismatch of sampler and trainer in log-probs; sources at its knobs."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.batch import masked
from algorithms.knobs.sampler_correction import (
    NoCorrection,
    SamplerCorrection,
    SequenceBand,
    SequenceTruncate,
    TokenBand,
    TokenTruncate,
)
from algorithms.objective import Objective
from algorithms.ratios import importance_ratio


@torch.no_grad()
def sampler_weights(objective: Objective, old_logp: Tensor, sampler_logp: Tensor, mask: Tensor) -> Tensor:
    """[B, T] the weight w of every token in the policy term, 0 where mask is; 1 elsewhere without a correction.

    old_logp, sampler_logp, mask [B, T]: of the rollout's policy, by the trainer and by the sampler. No gradient.
    """
    correction = objective.sampler_correction
    weights = bounded_weights(correction, raw_weights(correction, old_logp, sampler_logp, mask))
    return torch.where(mask.bool(), weights, 0)


@torch.no_grad()
def raw_weights(correction: SamplerCorrection, old_logp: Tensor, sampler_logp: Tensor, mask: Tensor) -> Tensor:
    """[B, T] pi_old / pi_sampler of each token or of its completion, whichever the correction looks at; no gradient."""
    mask = mask.bool()
    log_ratio = masked(mask, old_logp) - masked(mask, sampler_logp)
    match correction:
        case NoCorrection():
            return torch.ones_like(log_ratio)
        case TokenTruncate() | TokenBand():
            return importance_ratio("token", log_ratio, mask)
        case SequenceTruncate() | SequenceBand():
            return importance_ratio("sequence_product", log_ratio, mask)


def bounded_weights(correction: SamplerCorrection, weights: Tensor) -> Tensor:
    """The raw weights (of any shape) as the correction lets them count."""
    match correction:
        case NoCorrection():
            return weights
        case TokenTruncate() | SequenceTruncate():
            return weights.clamp(max=correction.weight_max)
        case TokenBand() | SequenceBand():
            inside = (weights >= correction.weight_min) & (weights <= correction.weight_max)
            return torch.where(inside, weights, 0)
