"""Estimates of the KL divergence from a reference policy, token by token.

Schulman 2020, "Approximating KL divergence": with d = log pi - log pi_ref at tokens drawn from pi, k1 = d,
k2 = d^2 / 2, k3 = exp(-d) - 1 + d. Their gradients differ more than their values: on fresh samples that of k1 is 0 in
the mean, that of k2 is the reverse KL's, that of k3 is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.knobs.kl import KlInReward, LossEstimator
from algorithms.ratios import LOG_RATIO_LIMIT, bounded_exp


def kl_estimate(estimator: LossEstimator, logp: Tensor, ref_logp: Tensor, old_logp: Tensor) -> Tensor:
    """Estimates of the KL at every token, in nats; all arguments and the result have one shape.

    Gradients flow to `logp` alone, d that of `log pi_ref`, r = pi / pi_old:

    * k1: 1; k1_clamped, max(k1, 0): 1 where d > 0; k2: d; k3: 1 - exp(-d);
    * k3_ratio, k3 r (TRL): r (1 - exp(-d) + k3), which is k2's d where r = 1;
    * k3_straight, the value of k3 (verl's k3+): d.

    Exponentials are bounded: below d = -LOG_RATIO_LIMIT k3 keeps its value there and has no gradient. It has no other
    bound (verl cuts k3 at 10, so that tokens which became e^2.6 times less likely have no gradient).
    """
    log_ratio = logp - ref_logp.detach()
    match estimator:
        case "k1":
            return log_ratio
        case "k1_clamped":
            return log_ratio.clamp(min=0)
        case "k2":
            return _k2(log_ratio)
        case "k3":
            return _k3(log_ratio)
        case "k3_ratio":
            return _k3(log_ratio) * bounded_exp(logp - old_logp.detach())
        case "k3_straight":
            k2 = _k2(log_ratio)
            return _k3(log_ratio).detach() + (k2 - k2.detach())


@torch.no_grad()
def kl_penalties(kl: KlInReward, old_logp: Tensor, ref_logp: Tensor, coefficient: float, mask: Tensor) -> Tensor:
    """Token rewards [B, T]: -coefficient x estimate of the KL at the rollout, 0 where mask is; no gradient.

    All tensors [B, T]; `coefficient` is kl.beta, or what its controller made of it.
    """
    estimates = kl_estimate(kl.estimator, old_logp, ref_logp, old_logp)
    return torch.where(mask.bool(), -coefficient * estimates, 0)


def kl_means(log_ratio: Tensor) -> dict[str, Tensor]:
    """Means of k1, k2 and k3 over the log-ratios d of any number of tokens."""
    return {"k1": log_ratio.mean(), "k2": _k2(log_ratio).mean(), "k3": _k3(log_ratio).mean()}


def _k2(log_ratio: Tensor) -> Tensor:
    return log_ratio**2 / 2


def _k3(log_ratio: Tensor) -> Tensor:
    bounded = log_ratio.clamp(min=-LOG_RATIO_LIMIT)
    return torch.expm1(-bounded) + bounded
