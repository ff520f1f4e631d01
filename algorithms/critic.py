"""`critic`: the value function of PPO (1707.06347). Its knobs, generalised advantage estimation, and the value loss.

The value V_t of a token is the value of the state before the token was sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from harness.settings import Settings
from harness.settings.marks import CannotAct

if TYPE_CHECKING:
    from torch import Tensor

EQUAL = 1e-5
"""Numbers that differ by less than this share of the largest one are equal up to rounding."""


class Critic(Settings):
    """The value function and its loss; it exists with baseline=critic."""

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

    rewards, values, mask [B, T]; rewards and values have one dtype. Tokens with mask 0 are skipped, as in verl: the
    next token is the next one of the mask, and V = A = 0 after the last. Skipped tokens get 0, and their entries are
    never used. The results are not whitened and have no gradient.
    """
    mask = mask.bool()
    values = values.detach().where(mask, 0)
    kept, ones = mask.to(values.dtype), values.new_ones(values.shape)
    # x_t is V_t at a token of the mask and x_(t+1) elsewhere, so x_(t+1) is the value of the next token of the mask.
    next_values = _from_the_end(values, 1 - kept)[:, 1:]
    deltas = (rewards.detach() + gamma * next_values - values).where(mask, 0)
    # A skipped token passes A_next on with factor 1: a gap between tokens of the mask is not discounted.
    carried = _from_the_end(deltas, ones.where(~mask, gamma * lam))[:, :-1]
    advantages = carried.where(mask, 0)
    return advantages, advantages + values


def value_losses(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None) -> Tensor:
    """Compute the loss of each token's value, 1/2 max((V - ret)^2, (clip(V, V_old +- value_clip) - ret)^2).

    The result has the shape of the arguments and is differentiable with respect to `values` only. A value that moved
    further than value_clip towards its return has no gradient. The clip is in PPO's code (OpenAI baselines), not in its
    paper. value_clip=None: half the squared error.
    """
    old_values, returns = old_values.detach(), returns.detach()
    losses = (values - returns).square()
    if value_clip is not None:
        clipped = values.clamp(old_values - value_clip, old_values + value_clip)
        losses = losses.maximum((clipped - returns).square())
    return losses / 2


def value_metrics(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None) -> dict[str, float]:
    """Compute the metrics of N tokens; all arguments [N]. Empty if there is no token.

    * value/explained_variance: 1 - Var(return - V_old) / Var(return), for the values behind the advantages. 1 is
      perfect, 0 no better than a constant, negative worse. If all returns are equal up to rounding (EQUAL of the
      largest number), it is 1 if all errors are equal too, else 0.
    * value/clip_frac: share of tokens whose loss is that of the clipped value; 0 without a clip.
    * value/mean, value/return_mean: means of the new values and of the returns.
    """
    if values.numel() == 0:
        return {}
    values = values.detach()
    errors = returns - old_values
    # The variance of equal returns is rounding only, and a ratio to it would be noise.
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

    # Stacked, so that all of them take one transfer from the device.
    return dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))


def _from_the_end(terms: Tensor, factors: Tensor) -> Tensor:
    """Solve x_t = terms_t + factors_t x_(t+1) for [B, T + 1], with x = 0 after the last of the T columns."""
    # Not imported at the top of the file: commands that need no torch also read the knobs here.
    import torch

    x = terms.new_zeros(terms.shape[0])
    columns = [x]
    for term, factor in zip(reversed(terms.unbind(1)), reversed(factors.unbind(1)), strict=True):
        x = term.addcmul(factor, x)
        columns.append(x)
    return torch.stack(columns[::-1], 1)
