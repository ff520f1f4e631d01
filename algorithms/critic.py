"""`critic`: knobs of PPO's value function (1707.06347), generalised advantage estimation (GAE), and the value loss.

The value V_t of token t is the value of the state before the token was sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from harness.settings import Settings
from harness.settings.marks import CannotAct

if TYPE_CHECKING:
    from torch import Tensor

EQUAL = 1e-5
"""Two numbers count as equal if they differ by at most this share of the largest absolute value."""


class Critic(Settings):
    """The value function and its loss, for baseline=critic only."""

    gamma: float = Field(default=1.0, gt=0, le=1, description="discount per token; default: PPO for language models")
    lam: float = Field(default=0.95, ge=0, le=1, description="lambda of GAE; default: TRL (verl, OpenRLHF: 1)")
    value_clip: Annotated[
        float | None, CannotAct(at_ratio_one="values are still the old values, inside any clip range")
    ] = Field(
        default=0.2,
        gt=0,
        description="new values count at most this far from the old ones; none: unbounded. Default: TRL (verl: 0.5)",
    )
    coef: float = Field(
        default=0.5, gt=0, description="coefficient of the value loss; default: OpenAI baselines (TRL: 0.1)"
    )
    trunk: Literal["own", "shared"] = Field(
        default="own",
        description="what the value head reads. own: a copy of the starting model; shared: the policy's hidden states",
    )
    learning_rate_factor: float = Field(
        default=1.0,
        gt=0,
        description="factor on train.learning_rate for the critic's own weights; default: 1 (verl's scripts: 10)",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="rollout batches at the start in which only the critic learns; default: verl"
    )
    whiten_rewards: bool = Field(
        default=False, description="divide token rewards by their std over the batch, and keep their mean (TRL)"
    )


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Compute advantages and returns A + V, both [B, T], by generalised advantage estimation (1506.02438, eq. 16).

        delta_t = r_t + gamma V_next - V_t        A_t = delta_t + gamma lam A_next

    rewards, values, mask [B, T]; rewards and values must have the same dtype. Tokens with mask 0 are skipped, as in
    verl: "next" means the next mask-1 token, and V = A = 0 after the last one. Skipped tokens get 0, and their rewards
    and values are never used. The results are not whitened and carry no gradient.
    """
    mask = mask.bool()
    values = values.detach().where(mask, 0)
    kept, ones = mask.to(values.dtype), values.new_ones(values.shape)
    # With x_t = V_t at a mask-1 token and x_t = x_(t+1) at a skipped one, x_(t+1) is the next mask-1 token's value.
    next_values = _from_the_end(values, 1 - kept)[:, 1:]
    deltas = (rewards.detach() + gamma * next_values - values).where(mask, 0)
    # A skipped token passes A_next on with factor 1, so gaps between mask-1 tokens are not discounted.
    carried = _from_the_end(deltas, ones.where(~mask, gamma * lam))[:, :-1]
    advantages = carried.where(mask, 0)
    return advantages, advantages + values


def value_losses(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None) -> Tensor:
    """Compute the value loss of each token, 1/2 max((V - ret)^2, (clip(V, V_old +- value_clip) - ret)^2).

    The result has the shape of the arguments and is differentiable with respect to `values` only. A value that has
    moved further than value_clip towards its return has no gradient. The clip comes from PPO's code (OpenAI baselines),
    not from the paper. If value_clip is None, the loss is half the squared error.
    """
    old_values, returns = old_values.detach(), returns.detach()
    losses = (values - returns).square()
    if value_clip is not None:
        clipped = values.clamp(old_values - value_clip, old_values + value_clip)
        losses = losses.maximum((clipped - returns).square())
    return losses / 2


def value_metrics(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None) -> dict[str, float]:
    """Compute the critic's metrics over N tokens; all tensors [N]. Returns an empty dict if N is 0.

    * value/explained_variance: 1 - Var(return - V_old) / Var(return), where V_old are the values that the advantages
      were computed from. 1 is perfect, 0 no better than a constant, negative worse than a constant. If all returns are
      equal up to rounding (see EQUAL), it is 1 if all errors are equal up to rounding, else 0.
    * value/clip_frac: fraction of tokens where the clipped value's loss is the larger one; 0 if value_clip is None.
    * value/mean: mean of the new values.
    * value/return_mean: mean of the returns.
    """
    if values.numel() == 0:
        return {}
    values = values.detach()
    errors = returns - old_values
    # If all returns are equal, their variance is rounding error, and dividing by it would give noise.
    rounding = EQUAL * returns.abs().max().maximum(old_values.abs().max())
    explained = (1 - errors.var(correction=0) / returns.var(correction=0)).where(
        returns.max() - returns.min() > rounding,
        (errors.max() - errors.min() <= rounding).to(errors.dtype),
    )
    clipped = value_losses(values, old_values, returns, value_clip) > value_losses(values, old_values, returns, None)
    metrics = {
        "value/explained_variance": explained,
        "value/clip_frac": clipped.to(values.dtype).mean(),
        "value/mean": values.mean(),
        "value/return_mean": returns.mean(),
    }
    import torch

    # Stacked, so that one transfer from the device fetches all metrics.
    return dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))


def _from_the_end(terms: Tensor, factors: Tensor) -> Tensor:
    """Solve x_t = terms_t + factors_t x_(t+1) for x [B, T + 1], starting from x_T = 0 in the last column."""
    # Imported here, because commands that run without torch import the knobs of this module.
    import torch

    x = terms.new_zeros(terms.shape[0])
    columns = [x]
    for term, factor in zip(reversed(terms.unbind(1)), reversed(factors.unbind(1)), strict=True):
        x = term.addcmul(factor, x)
        columns.append(x)
    return torch.stack(columns[::-1], 1)
