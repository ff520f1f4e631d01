"""The links: losses of pairs, computed from log-ratios of completions, which are computed from token log-probs.

The description of the knob `link` gives the sources.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from algorithms.preference.objective import PreferenceObjective
from algorithms.rules import bounded_exp

MAX_LOGP = -1e-6
"""Log-probs are clamped to this before their odds are computed, because probability 1 has infinite odds."""


class Sides(NamedTuple):
    """One tensor for the chosen and one for the rejected completions of the same pairs."""

    chosen: Tensor
    rejected: Tensor


class LogRatios(NamedTuple):
    """Log-ratios of P pairs, each [P], with gradient. If the objective has no reference, these are log-probs."""

    chosen: Tensor
    rejected: Tensor
    difference: Tensor
    """The input of pairwise links: chosen - rejected, after `matching` and `positive_penalty`."""


def completion_logps(objective: PreferenceObjective, logps: Sides, masks: Sides) -> Sides:
    """Compute log-probs of completions, [P] and [P], from log-probs of tokens [P, T], which are 0 outside the masks."""
    if objective.logp == "mean":
        return token_means(logps, masks)
    sums = token_sums(logps)
    if objective.ld_alpha == 1:
        return sums
    # LD-DPO (2409.06411): tokens beyond the length of the pair's shorter completion have weight ld_alpha.
    shorter = torch.minimum(masks.chosen.sum(1), masks.rejected.sum(1))[:, None]
    shared = token_sums(Sides(*(logp * (mask.cumsum(1) <= shorter) for logp, mask in zip(logps, masks, strict=True))))
    return Sides(*(both + objective.ld_alpha * (all_ - both) for both, all_ in zip(shared, sums, strict=True)))


def token_sums(logps: Sides) -> Sides:
    """Sum over the tokens [P, T] of each completion: [P] and [P]."""
    return Sides(logps.chosen.sum(1), logps.rejected.sum(1))


def token_means(logps: Sides, masks: Sides) -> Sides:
    """Average over the tokens [P, T] of each completion: [P] and [P]. No completion may be empty."""
    sums = token_sums(logps)
    return Sides(sums.chosen / masks.chosen.sum(1), sums.rejected / masks.rejected.sum(1))


def log_ratios(objective: PreferenceObjective, policy: Sides, reference: Sides) -> LogRatios:
    """Compute log-ratios from log-probs of completions, each [P]. If there is no reference, pass zeros for it."""
    chosen, rejected = policy.chosen - reference.chosen, policy.rejected - reference.rejected
    match objective.matching:
        case "pairs":
            # DPO-Positive (2402.13228, eq. 3) puts its penalty inside the sigmoid, where beta multiplies it.
            difference = chosen - rejected - objective.positive_penalty * torch.relu(-chosen)
        case "sorted":
            # Sorting compares distributions rank by rank (AOT, 2406.05882). So the two terms of a row may come from
            # different pairs.
            of_policy, of_reference = policy.chosen - policy.rejected, reference.chosen - reference.rejected
            difference = of_policy.sort().values - of_reference.sort().values
        case "sorted_unpaired":
            difference = chosen.sort().values - rejected.sort().values
    return LogRatios(chosen, rejected, difference)


def pair_losses(objective: PreferenceObjective, log_ratios: LogRatios, zero_point: Tensor) -> Tensor:
    """Return the link's loss [P] of every pair. zero_point []: KTO's z in nats; ignored by the other links."""
    beta, target = objective.beta, 1 / (2 * objective.beta)
    chosen, rejected, difference = log_ratios
    logit = beta * difference - objective.margin
    match objective.link:
        case "logistic":
            return _smoothed_logistic(objective, logit)
        case "hinge":
            return torch.relu(1 - logit)
        case "square":
            return (difference - target) ** 2
        case "exo":
            return _reverse_kl(logit, objective.label_smoothing)
        case "discopop":
            blend = torch.sigmoid(logit / objective.discopop_tau)
            # The exponential is bounded, so that a pair far on the wrong side gives a finite loss.
            return (1 - blend) * -logsigmoid(logit) + blend * bounded_exp(-logit)
        case "odds_ratio":
            return -beta * logsigmoid(_log_odds(chosen) - _log_odds(rejected))
        case "kto":
            desirable = objective.desirable_weight * torch.sigmoid(beta * (zero_point - chosen))
            undesirable = objective.undesirable_weight * torch.sigmoid(beta * (rejected - zero_point))
            # KTO's loss is a mean over completions, so the loss of a pair is the mean of its two completions.
            return (desirable + undesirable) / 2
        case "bco":
            return -logsigmoid(beta * chosen) - logsigmoid(-beta * rejected)
        case "nca":
            own = -logsigmoid(beta * chosen) - logsigmoid(-beta * chosen) / 2
            return own - logsigmoid(-beta * rejected) / 2
        case "apo_zero":
            return torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected)
        case "apo_down":
            return torch.sigmoid(beta * chosen) + torch.sigmoid(-beta * difference)
        case "sppo_hard":
            return (chosen - target) ** 2 + (rejected + target) ** 2


def _smoothed_logistic(objective: PreferenceObjective, logit: Tensor) -> Tensor:
    """Return the logistic loss [P] if labels are wrong with probability label_smoothing (cDPO or robust DPO)."""
    right, wrong = -logsigmoid(logit), -logsigmoid(-logit)
    e = objective.label_smoothing
    if objective.smoothing == "robust":
        return ((1 - e) * right - e * wrong) / (1 - 2 * e)
    return (1 - e) * right + e * wrong


def _reverse_kl(logit: Tensor, label_smoothing: float) -> Tensor:
    """Compute KL((q, 1 - q) || (1 - e, e)) [P] with q = sigmoid(logit) and e = label_smoothing."""
    right = torch.sigmoid(logit) * (logsigmoid(logit) - math.log1p(-label_smoothing))
    wrong = torch.sigmoid(-logit) * (logsigmoid(-logit) - math.log(label_smoothing))
    return right + wrong


def _log_odds(logp: Tensor) -> Tensor:
    """Compute log(p / (1 - p)) from log p."""
    # log(1 - p) uses expm1, because 1 - exp(log p) loses precision near p = 1. The clamp keeps it finite at p = 1.
    logp = logp.clamp(max=MAX_LOGP)
    return logp - torch.log(-torch.expm1(logp))
