"""Update rules: the loss of one token from its advantage A and importance ratio r; sources at their knobs."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.objective import Cispo, PolicyGradient, PpoClip, Rule, Weighted


def token_losses(rule: Rule, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
    """The rule's loss of every token; all arguments and the result are [B, T]."""
    match rule:
        case PolicyGradient():
            return -advantages * logp
        case Weighted():
            return -advantages * ratio
        case Cispo():
            return -advantages * ratio.detach().clamp(rule.weight_min, rule.weight_max) * logp
        case PpoClip():
            clipped = ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
            losses = torch.maximum(-advantages * ratio, -advantages * clipped)
            if rule.dual_clip is None:
                return losses
            return torch.where(advantages < 0, torch.minimum(losses, -advantages * rule.dual_clip), losses)


def ratio_bounds(rule: Rule) -> tuple[float, float] | None:
    """The interval outside which the rule bounds the ratio; none for a rule without one."""
    match rule:
        case PpoClip():
            return 1 - rule.clip_low, 1 + rule.clip_high
        case Cispo():
            return rule.weight_min, float("inf") if rule.weight_max is None else rule.weight_max
        case PolicyGradient() | Weighted():
            return None
