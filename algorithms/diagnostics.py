"""Metrics of a policy update: how far the policy moved from the one that sampled, and what the rule bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.objective import PpoClip, Rule
from algorithms.rules import ratio_bounds


@dataclass(frozen=True, eq=False)
class TokenTrace:
    """Detached values of a micro-batch's N tokens with mask 1, each [N]."""

    rule: Rule
    log_ratio: Tensor
    """log pi - log pi_old of the token."""
    ratio: Tensor
    """The importance ratio that the rule used: the token's or its completion's."""
    advantages: Tensor


def update_metrics(traces: Sequence[TokenTrace]) -> dict[str, float]:
    """Metrics over all tokens of the traces, which share one rule; empty if there is no token.

    * ratio/mean, ratio/p99 (nearest rank), ratio/max: of token ratios exp(log pi - log pi_old), whatever ratio the
      objective uses, so that arms with different ones compare;
    * kl/k1_old, kl/k3_old: estimates of KL(pi_old || pi) from its samples, the means of -log r and r - 1 - log r
      (Schulman 2020, "Approximating KL divergence");
    * clip/{low,high}_frac_any_sign: fraction of tokens whose ratio, as the rule uses it, is below or above the rule's
      bounds; clip/{low,high}_frac_sign_aware: those among them that a bound acts on (low: A < 0, high: A > 0).
      Only rules with bounds have them; for cispo they are the bounds of the weight;
    * clip/dual_frac: fraction of tokens with A < 0 and r > dual_clip; only with dual_clip on.
    """
    if sum(trace.log_ratio.numel() for trace in traces) == 0:
        return {}
    rule = traces[0].rule
    log_ratio = torch.cat([trace.log_ratio for trace in traces])
    ratio = torch.cat([trace.ratio for trace in traces])
    advantages = torch.cat([trace.advantages for trace in traces])

    token_ratio = log_ratio.exp()
    metrics = {
        "ratio/mean": token_ratio.mean(),
        "ratio/p99": token_ratio.kthvalue(math.ceil(0.99 * token_ratio.numel())).values,
        "ratio/max": token_ratio.max(),
        "kl/k1_old": -log_ratio.mean(),
        "kl/k3_old": (torch.expm1(log_ratio) - log_ratio).mean(),
    }
    bounds = ratio_bounds(rule)
    if bounds is not None:
        low, high = ratio < bounds[0], ratio > bounds[1]
        metrics |= {
            "clip/low_frac_sign_aware": _fraction(low & (advantages < 0), ratio.dtype),
            "clip/high_frac_sign_aware": _fraction(high & (advantages > 0), ratio.dtype),
            "clip/low_frac_any_sign": _fraction(low, ratio.dtype),
            "clip/high_frac_any_sign": _fraction(high, ratio.dtype),
        }
    if isinstance(rule, PpoClip) and rule.dual_clip is not None:
        metrics["clip/dual_frac"] = _fraction((advantages < 0) & (ratio > rule.dual_clip), ratio.dtype)
    # One transfer from the device for all of them.
    return dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))


def update_metric_names(rule: Rule) -> tuple[str, ...]:
    """Names of the metrics that `update_metrics` gives under a rule, where there is a token."""
    one_token = torch.zeros(1)
    return tuple(update_metrics([TokenTrace(rule, log_ratio=one_token, ratio=one_token, advantages=one_token)]))


def _fraction(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    return tokens.to(dtype).mean()
