"""From log-probs of tokens to the log-ratios of completions that a link compares."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.preference.links import LogRatios
from algorithms.preference.objective import PreferenceObjective


class Sides(NamedTuple):
    """One tensor for the chosen and one for the rejected completions of the same pairs."""

    chosen: Tensor
    rejected: Tensor


def completion_logps(objective: PreferenceObjective, logps: Sides, masks: Sides) -> Sides:
    """[P] and [P]: log-probs of completions from those of their tokens [P, T], 0 where masks (bool, [P, T]) are not."""
    if objective.logp == "mean":
        return token_means(logps, masks)
    sums = token_sums(logps)
    if objective.ld_alpha == 1:
        return sums
    shorter = torch.minimum(masks.chosen.sum(1), masks.rejected.sum(1))[:, None]
    shared = token_sums(Sides(*(logp * (mask.cumsum(1) <= shorter) for logp, mask in zip(logps, masks, strict=True))))
    return Sides(*(both + objective.ld_alpha * (all_ - both) for both, all_ in zip(shared, sums, strict=True)))


def token_sums(logps: Sides) -> Sides:
    """[P] and [P]: sums over the tokens [P, T] of each completion."""
    return Sides(logps.chosen.sum(1), logps.rejected.sum(1))


def token_means(logps: Sides, masks: Sides) -> Sides:
    """[P] and [P]: means over the tokens [P, T] of each completion, of which each has one."""
    sums = token_sums(logps)
    return Sides(sums.chosen / masks.chosen.sum(1), sums.rejected / masks.rejected.sum(1))


def log_ratios(objective: PreferenceObjective, policy: Sides, reference: Sides) -> LogRatios:
    """From the log-probs of completions, each [P]; those of the reference are zeros where there is none."""
    chosen, rejected = policy.chosen - reference.chosen, policy.rejected - reference.rejected
    match objective.matching:
        case "pairs":
            difference = chosen - rejected - objective.positive_penalty * torch.relu(-chosen)
        case "sorted":
            of_policy, of_reference = policy.chosen - policy.rejected, reference.chosen - reference.rejected
            difference = of_policy.sort().values - of_reference.sort().values
        case "sorted_unpaired":
            difference = chosen.sort().values - rejected.sort().values
    return LogRatios(chosen, rejected, difference)
