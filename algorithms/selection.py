"""`select`: tokens that are treated differently, chosen over a whole optimiser step. The knobs and the choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from algorithms.rules import checked, importance_ratio
from harness.errors import InvalidError
from harness.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from algorithms.objective import Objective


class NoSelection(Settings):
    """All tokens are treated alike."""

    type: Literal["none"] = "none"


class ClipCov(Settings):
    """Clip-Cov (2505.22617): tokens drawn from those of high covariance of A and log pi lose their gradient."""

    type: Literal["clip_cov"] = "clip_cov"
    fraction: float = Field(default=2e-4, gt=0, le=1, description="share of the step's tokens; default: the paper")
    cov_low: float = Field(default=1.0, description="covariances above this can be drawn; default: the authors' code")
    cov_high: float = Field(default=5.0, description="covariances below this can be drawn; default: the authors' code")

    def contradictions(self) -> Iterator[InvalidError]:
        if self.cov_high <= self.cov_low:
            yield InvalidError("algorithms.cov_high_not_above_low", high=self.cov_high, low=self.cov_low)


class KlCov(Settings):
    """KL-Cov (2505.22617): the tokens of highest covariance of A and log pi get a penalty on |log r|."""

    type: Literal["kl_cov"] = "kl_cov"
    fraction: float = Field(
        default=2e-3, gt=0, le=1, description="share of the step's tokens; default: the paper's 7B (32B: 2e-4)"
    )
    coef: float = Field(default=1.0, gt=0, description="coefficient of the penalty; default: the paper (verl: 0.1)")


class TopEntropy(Settings):
    """Only the tokens of highest entropy keep their policy gradient (2506.01939)."""

    type: Literal["top_entropy"] = "top_entropy"
    fraction: float = Field(default=0.2, gt=0, le=1, description="share of the step's tokens; default: the paper")


Select = Annotated[NoSelection | ClipCov | KlCov | TopEntropy, Field(discriminator="type")]


def select_tokens(
    objective: Objective,
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    entropy: Tensor | None = None,
    key: int = 0,
) -> Tensor:
    """Choose tokens by `objective.select` among the N tokens with mask 1: bool [B, T], without gradient.

    logp, old_logp, mask, entropy [B, T]; advantages [B] or [B, T]. Pass all rows of one optimiser step, at the weights
    before it: a choice within each micro-batch would depend on how the step is split. max(floor(fraction N), 1) tokens
    are chosen, or fewer if there are not that many candidates:

    * kl_cov: the tokens of highest covariance (A - mean A)(log pi - mean log pi), with means over the N tokens.
    * clip_cov: a random sample of the tokens that have a covariance between the bounds and that no bound of the rule
      acts on. `key` (64 bits) seeds it, and the sample depends on the positions of the tokens in [B, T].
    * top_entropy: the tokens of highest entropy.

    Among equal tokens the first counts as the highest. Raises ValueError for top_entropy without entropy.
    """
    import torch

    mask, select, logp, old_logp = mask.bool(), objective.select, logp.detach(), old_logp.detach()
    per_token = advantages.detach() if advantages.ndim == 2 else advantages.detach()[:, None].expand_as(logp)
    match select:
        case NoSelection():
            return torch.zeros_like(mask)
        case TopEntropy():
            if entropy is None:
                raise InvalidError("algorithms.entropy_missing")
            return _highest(entropy.detach(), mask, _count(select, mask))
        case KlCov():
            return _highest(_covariances(logp, per_token, mask), mask, _count(select, mask))
        case ClipCov():
            covariances = _covariances(logp, per_token, mask)
            between = mask & (covariances > select.cov_low) & (covariances < select.cov_high)
            ratio = importance_ratio(objective.ratio, torch.where(mask, logp - old_logp, 0), mask)
            rule = objective.rule
            # Tokens that a bound of the rule acts on are no candidates: a clip has taken their gradient already.
            beyond = checked(rule, "beyond_bounds", rule.beyond_bounds(ratio, per_token), ratio, holds_bools=True)
            candidates = between & ~beyond
            # Sampled on the CPU and for all positions [B, T]. The number of a position then depends on the key and the
            # shape, and neither on the device nor on which tokens are candidates.
            generator = torch.Generator().manual_seed(key)
            lots = torch.rand(mask.shape, generator=generator, dtype=torch.float64).to(mask.device)
            return _highest(lots, candidates, _count(select, mask))


def selected_losses(select: Select, losses: Tensor, selected: Tensor, log_ratio: Tensor) -> Tensor:
    """Apply the selection to the policy losses of tokens [B, T]; log_ratio, selected [B, T]."""
    # A loss is set to 0 instead of being left out: the token stays in the denominators.
    match select:
        case NoSelection():
            return losses
        case ClipCov():
            return losses.where(~selected, 0)
        case TopEntropy():
            return losses.where(selected, 0)
        case KlCov():
            return (losses + select.coef * log_ratio.abs()).where(selected, losses)


def _count(select: ClipCov | KlCov | TopEntropy, mask: Tensor) -> int:
    return max(int(select.fraction * int(mask.sum())), 1)


def _highest(scores: Tensor, among: Tensor, count: int) -> Tensor:
    """Mark the `count` highest scores of the candidates `among`: bool, of the shape of `scores`."""
    # Sorted stably: of equal scores the first are taken, in every run.
    places = among.flatten().nonzero()[:, 0]
    order = scores.flatten()[places].argsort(descending=True, stable=True)
    chosen = among.flatten() & False
    chosen[places[order[:count]]] = True
    return chosen.view_as(among)


def _covariances(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return (advantages - advantages[mask].mean()) * (logp - logp[mask].mean())
