"""Selection: the tokens of an optimiser step that `select` treats differently; sources at its knobs."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.knobs.select import ClipCov, KlCov, NoSelection, Select, TopEntropy
from algorithms.objective import Objective
from algorithms.ratios import importance_ratio
from algorithms.rules import bound_acts


@torch.no_grad()
def select_tokens(
    objective: Objective,
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    entropy: Tensor | None = None,
    key: int = 0,
) -> Tensor:
    """Bool [B, T]: the tokens, among the N with mask 1, that `objective.select` chooses. Without gradient.

    logp, old_logp, mask, entropy [B, T], advantages [B] or [B, T]: all rows of one optimiser step at the weights before
    it, since a choice within each micro-batch would depend on how the step is split. Each choice is of
    max(floor(fraction N), 1) tokens, if there are that many:

    * kl_cov: those of highest covariance (A - mean A)(log pi - mean log pi), means over the N tokens;
    * clip_cov: drawn from those whose covariance is between the bounds and which no bound of the rule acts on. `key`
      (64 bits) names the draw, which goes by the places of the tokens in [B, T];
    * top_entropy: those of highest entropy.

    Of equal tokens the first count as highest. Raises ValueError for top_entropy without entropy.
    """
    mask, select = mask.bool(), objective.select
    match select:
        case NoSelection():
            return torch.zeros_like(mask)
        case TopEntropy():
            if entropy is None:
                raise ValueError("select.type=top_entropy chooses by entropy, but there is none: give entropy [B, T]")
            return _highest(entropy, mask, _count(select, mask))
        case KlCov():
            return _highest(_covariances(logp, advantages, mask), mask, _count(select, mask))
        case ClipCov():
            covariances = _covariances(logp, advantages, mask)
            between = mask & (covariances > select.cov_low) & (covariances < select.cov_high)
            candidates = between & ~_bounded(objective, logp, old_logp, advantages, mask)
            # Drawn on the CPU for all places, so that a place's number depends on nothing but the key.
            generator = torch.Generator().manual_seed(key)
            lots = torch.rand(mask.shape, generator=generator, dtype=torch.float64).to(mask.device)
            return _highest(lots, candidates, _count(select, mask))


def selected_losses(select: Select, losses: Tensor, selected: Tensor, log_ratio: Tensor) -> Tensor:
    """The policy losses of tokens [B, T] after the selection; log_ratio, selected [B, T]."""
    match select:
        case NoSelection():
            return losses
        case ClipCov():
            return torch.where(selected, 0, losses)
        case TopEntropy():
            return torch.where(selected, losses, 0)
        case KlCov():
            return torch.where(selected, losses + select.coef * log_ratio.abs(), losses)


def _count(select: ClipCov | KlCov | TopEntropy, mask: Tensor) -> int:
    return max(int(select.fraction * int(mask.sum())), 1)


def _highest(scores: Tensor, among: Tensor, count: int) -> Tensor:
    """Bool, of the shape of `scores`: the `count` highest of those that are `among`."""
    places = among.flatten().nonzero()[:, 0]
    order = scores.flatten()[places].argsort(descending=True, stable=True)
    chosen = torch.zeros_like(among).flatten()
    chosen[places[order[:count]]] = True
    return chosen.view_as(among)


def _covariances(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    per_token = advantages if advantages.ndim == 2 else advantages[:, None].expand_as(logp)
    return (per_token - per_token[mask].mean()) * (logp - logp[mask].mean())


def _bounded(objective: Objective, logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Bool [B, T]: tokens whose ratio is already bounded by the rule."""
    per_token = advantages if advantages.ndim == 2 else advantages[:, None]
    ratio = importance_ratio(objective.ratio, torch.where(mask, logp - old_logp, 0), mask)
    return bound_acts(objective.rule, ratio, per_token)
