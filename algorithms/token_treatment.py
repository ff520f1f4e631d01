"""What an objective did with each token of a loss: bounded its ratio, took it out, or left it alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.diagnostics import TokenTrace
from algorithms.knobs.rule import Cispo, PpoClip
from algorithms.knobs.select import ClipCov, TopEntropy
from algorithms.rules import bound_acts, ratio_bounds
from algorithms.sampler_correction import bounded_weights


class Treatment(NamedTuple):
    """Bool [B, T] each, false where the trace's mask is; no token is both."""

    clipped: Tensor
    """A bound of the rule acts on the token's ratio: ppo_clip and gmpo beyond the bound to which the advantage pulls,
    where the token loses its gradient; dual_clip likewise; cispo on both sides, where it keeps a bounded weight."""
    masked: Tensor
    """Taken out of the policy loss: by `rule.mask`, by `select` (clip_cov, top_entropy), or by a sampler correction of
    weight 0."""


def treatment(trace: TokenTrace) -> Treatment:
    """How the objective of a trace treated its tokens, in the optimiser step that the trace is of."""
    clipped, masked = _by_the_rule(trace)
    match trace.objective.select:
        case ClipCov():
            masked = masked | _selected(trace)
        case TopEntropy():
            masked = masked | ~_selected(trace)
    if trace.raw_weights is not None:
        masked = masked | (bounded_weights(trace.objective.sampler_correction, trace.raw_weights) == 0)
    return Treatment(clipped & ~masked & trace.mask, masked & trace.mask)


def _by_the_rule(trace: TokenTrace) -> tuple[Tensor, Tensor]:
    rule, ratio, advantages = trace.objective.rule, trace.ratio, trace.advantages
    nothing = torch.zeros_like(trace.mask)
    beyond = bound_acts(rule, ratio, advantages)
    if isinstance(rule, Cispo):
        if rule.mask == "unified":
            return nothing, beyond
        low, high = ratio_bounds(rule) or (0.0, torch.inf)
        return ((ratio < low) | (ratio > high)) & (advantages != 0), nothing
    if isinstance(rule, PpoClip) and rule.dual_clip is not None:
        beyond = beyond | ((advantages < 0) & (ratio > rule.dual_clip))
    return beyond, nothing


def _selected(trace: TokenTrace) -> Tensor:
    """Raises ValueError for a trace without the selection that its objective makes."""
    if trace.selected is None:
        raise ValueError(f"select.type={trace.objective.select.type}, but the trace holds no selection")
    return trace.selected
