"""Credit: which tokens the rewards of a completion are credited to."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.objective import Objective
from algorithms.rewarded_tokens import RewardedTokens
from algorithms.statistics import deviations, variance


def returns_to_go(rewards: Tensor) -> Tensor:
    """[B, T] the sum of a completion's token rewards [B, T] from each token on: what the token can still influence."""
    return rewards.flip(1).cumsum(1).flip(1)


def step_advantages(objective: Objective, rewarded: RewardedTokens, group: Tensor) -> Tensor:
    """[B, T] process supervision (DeepSeekMath, 2402.03300, section 4.1.3); group [B] int64, below B.

    The rewards of all steps of a group are standardised together; a token's advantage is the sum over the steps that
    end at it or later. A step ends at every token that was given a reward and at the completion's last token, whose
    step is also paid the completion's reward. A fully masked completion has no steps.
    """
    ends = rewarded.marked | rewarded.last
    weights = ends.flatten().to(rewarded.rewards.dtype)
    segments = group[:, None].expand_as(ends).flatten()
    rewards = rewarded.at_tokens.flatten()
    standardised = deviations(rewards, weights, segments)
    if objective.scale == "group_std":
        std = variance(rewards, weights, segments, objective.scale_ddof).sqrt()
        standardised = standardised / (std + objective.scale_eps)
    return returns_to_go(torch.where(ends, standardised.view_as(ends), 0))
