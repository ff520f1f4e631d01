"""Importance ratios: how much likelier the current policy makes a token, or a completion, than the rollout's did."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.objective import Ratio

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before the exponential, as in verl; beyond it a token has no gradient through r."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp of log-ratios clamped to +-LOG_RATIO_LIMIT."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def importance_ratio(kind: Ratio, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """r of every token [B, T]; the ratio of a whole completion stands at each of its tokens.

    log_ratio [B, T]: log pi - log pi_old, 0 where mask is; mask [B, T] bool.
    """
    match kind:
        case "none":
            return torch.ones_like(log_ratio)
        case "token":
            return bounded_exp(log_ratio)
        case "sequence_mean":
            log_r = log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        case "sequence_product":
            log_r = log_ratio.sum(1, keepdim=True)
    return bounded_exp(log_r).expand_as(log_ratio)
