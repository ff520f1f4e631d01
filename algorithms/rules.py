"""Update rules: the loss of one token from its advantage A and importance ratio r; sources at their knobs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algorithms.knobs.rule import Cispo, Gmpo, PolicyGradient, PpoClip, Rule, Sapo, Weighted
from algorithms.ratios import bounded_exp


def clipped_log_ratio(rule: Rule, log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """Log-ratios of tokens [B, T] as they enter the importance ratio: gmpo clips each before it averages them.

    It clips where moving further would be rewarded: from above for A > 0, from below for A < 0.
    """
    if not isinstance(rule, Gmpo):
        return log_ratio
    lowered = torch.where(advantages > 0, log_ratio.clamp(max=rule.log_ratio_high), log_ratio)
    return torch.where(advantages < 0, lowered.clamp(min=-rule.log_ratio_low), lowered)


def token_losses(rule: Rule, logp: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
    """The rule's loss of every token; all arguments and the result are [B, T].

    A rule on a ratio of the completion has its one term at each of the completion's tokens, whose mean it therefore is
    under seq_mean_token_mean (GSPO, GMPO).
    """
    match rule:
        case PolicyGradient():
            return -advantages * logp
        case Weighted() | Gmpo():
            return -advantages * ratio
        case Cispo():
            return -advantages * _cispo_weights(rule, ratio.detach(), advantages) * logp
        case PpoClip():
            clipped = ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
            losses = torch.maximum(-advantages * ratio, -advantages * clipped)
            if rule.dual_clip is None:
                return losses
            return torch.where(advantages < 0, torch.minimum(losses, -advantages * rule.dual_clip), losses)
        case Sapo():
            positive, negative = (rule.temperature_positive, rule.temperature_negative)
            temperature = torch.where(advantages > 0, positive, negative).to(ratio.dtype)
            return -advantages * torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature


def ratio_bounds(rule: Rule) -> tuple[float, float] | None:
    """The interval outside which the rule bounds what `bounded_ratio` gives; none for a rule without one."""
    match rule:
        case PpoClip():
            return 1 - rule.clip_low, 1 + rule.clip_high
        case Cispo():
            return rule.weight_min, math.inf if rule.weight_max is None else rule.weight_max
        case Gmpo():
            return math.exp(-rule.log_ratio_low), math.exp(rule.log_ratio_high)
        case PolicyGradient() | Weighted() | Sapo():
            return None


def bounded_ratio(rule: Rule, ratio: Tensor, log_ratio: Tensor) -> Tensor:
    """[B, T] the ratio that the rule bounds: the importance ratio; for gmpo that of each token, from its log-ratio."""
    return bounded_exp(log_ratio) if isinstance(rule, Gmpo) else ratio


def bound_acts(rule: Rule, ratio: Tensor, advantages: Tensor) -> Tensor:
    """[B, T] bool: tokens whose ratio is beyond the bound to which their advantage pulls it; `ratio`: bounded_ratio."""
    bounds = ratio_bounds(rule)
    if bounds is None:
        return torch.zeros_like(ratio, dtype=torch.bool)
    low, high = bounds
    return ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))


def _cispo_weights(rule: Cispo, ratio: Tensor, advantages: Tensor) -> Tensor:
    if rule.mask == "unified":
        return torch.where(bound_acts(rule, ratio, advantages), 0, ratio)
    return ratio.clamp(rule.weight_min, rule.weight_max)
