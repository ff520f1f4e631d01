"""`select`: the choice of tokens that get a different loss, made over a complete optimiser step, and its knobs."""

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
    """All tokens have the same loss."""

    type: Literal["none"] = "none"


class ClipCov(Settings):
    """Clip-Cov (2505.22617): random tokens with a high covariance of A and log pi lose their gradient."""

    type: Literal["clip_cov"] = "clip_cov"
    fraction: float = Field(default=2e-4, gt=0, le=1, description="share of the step's tokens; default: the paper")
    cov_low: float = Field(default=1.0, description="covariances above this are eligible; default: the authors' code")
    cov_high: float = Field(default=5.0, description="covariances below this are eligible; default: the authors' code")

    def contradictions(self) -> Iterator[InvalidError]:
        if self.cov_high <= self.cov_low:
            yield InvalidError("algorithms.cov_high_not_above_low", high=self.cov_high, low=self.cov_low)


class KlCov(Settings):
    """KL-Cov (2505.22617): the tokens with the highest covariance of A and log pi get a penalty on |log r|."""

    type: Literal["kl_cov"] = "kl_cov"
    fraction: float = Field(
        default=2e-3, gt=0, le=1, description="share of the step's tokens; default: the paper's 7B (32B: 2e-4)"
    )
    coef: float = Field(default=1.0, gt=0, description="coefficient of the penalty; default: the paper (verl: 0.1)")


class TopEntropy(Settings):
    """Only the tokens with the highest entropy keep their policy gradient (2506.01939)."""

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
    """Choose tokens by `objective.select` among the N mask-1 tokens. Returns a bool mask [B, T].

    Pass all rows of one optimiser step, with log-probs at the weights before it. A choice within each micro-batch would
    depend on how the step is split.

    logp, old_logp, mask, entropy [B, T]; advantages [B] or [B, T]. key: 64-bit seed of clip_cov's random sample.

    max(floor(fraction N), 1) tokens are chosen, or fewer if there are fewer candidates:

    * kl_cov: the tokens with the highest covariance (A - mean A)(log pi - mean log pi), with means over the N tokens.
    * clip_cov: a random sample of the tokens that have a covariance between cov_low and cov_high and are not beyond a
      bound of the rule. For one `key`, the sample depends on the positions of the tokens in [B, T].
    * top_entropy: the tokens with the highest entropy.

    Ties go to the token that comes first. Raises ValueError for top_entropy if entropy is None.
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
            # Tokens beyond a bound of the rule are not candidates, because the clip has already removed their gradient.
            beyond = checked(rule, "beyond_bounds", rule.beyond_bounds(ratio, per_token), ratio, holds_bools=True)
            candidates = between & ~beyond
            # A random number is drawn on the CPU for every position of [B, T]. It thus depends only on the key and the
            # shape, not on the device or on which tokens are candidates.
            generator = torch.Generator().manual_seed(key)
            lots = torch.rand(mask.shape, generator=generator, dtype=torch.float64).to(mask.device)
            return _highest(lots, candidates, _count(select, mask))


def selected_losses(select: Select, losses: Tensor, selected: Tensor, log_ratio: Tensor) -> Tensor:
    """Apply the selection to the tokens' policy losses. All tensors are [B, T]."""
    # Losses are set to 0, not removed, so their tokens still count in the denominators.
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
    """Mark the `count` highest scores among the candidates `among`: bool, in the shape of `scores`."""
    # The sort is stable, so that ties always go to the first position.
    places = among.flatten().nonzero()[:, 0]
    order = scores.flatten()[places].argsort(descending=True, stable=True)
    chosen = among.flatten() & False
    chosen[places[order[:count]]] = True
    return chosen.view_as(among)


def _covariances(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return (advantages - advantages[mask].mean()) * (logp - logp[mask].mean())
