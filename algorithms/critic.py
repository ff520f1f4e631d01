"""The critic's mathematics: generalised advantage estimation, the value loss, and how well values predict returns.

The value V_t of a token is that of the state before it was drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.objective import Objective
from algorithms.rewarded_tokens import RewardedTokens, check_shape
from algorithms.statistics import whitened

REWARD_WHITENING_EPS = 1e-8
EQUAL = 1e-5


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (1506.02438, eq. 16): advantages [B, T] and returns A + V [B, T], unwhitened.

        delta_t = r_t + gamma V_next - V_t        A_t = delta_t + gamma lam A_next

    rewards, values, mask [B, T], the first two of one dtype. Tokens with mask 0 are skipped, as in verl: the next token
    is the next one of the mask; after the last one V = A = 0. They get 0, and what stands there is not used.
    """
    mask = mask.bool()
    zero = torch.zeros_like(values)
    values = torch.where(mask, values, zero)
    next_values = _from_the_end(values, torch.where(mask, zero, 1.0))[:, 1:]
    deltas = torch.where(mask, rewards + gamma * next_values - values, zero)
    carried = _from_the_end(deltas, torch.where(mask, gamma * lam, zero + 1.0))[:, :-1]
    advantages = torch.where(mask, carried, zero)
    return advantages, advantages + values


def critic_advantages(objective: Objective, rewarded: RewardedTokens, values: Tensor) -> tuple[Tensor, Tensor]:
    """GAE of all rewards under the objective's critic knobs: unwhitened advantages and returns [B, T]; values [B, T].

    Raises ValueError for values of another shape than the mask.
    """
    check_shape("values", values, rewarded.mask)
    rewards, critic = rewarded.at_tokens, objective.critic
    if critic.whiten_rewards:
        # whiten(shift_mean=False) of TRL: unit variance, the mean as it was.
        mean = rewards[rewarded.mask].mean()
        rewards = whitened(rewards, rewarded.mask, ddof=1, eps=REWARD_WHITENING_EPS) + mean
    return gae(rewards, values.to(rewards.dtype), rewarded.mask, critic.gamma, critic.lam)


@torch.no_grad()
def value_targets(
    objective: Objective, rewards: Tensor, mask: Tensor, values: Tensor, token_rewards: Tensor | None = None
) -> Tensor:
    """Returns that the critic is fitted to [B, T], 0 where mask is 0; arguments as in `advantages`.

    The targets of a completion that could not be scored are its values: it teaches nothing.

    Raises ValueError for shapes that do not fit and for rewards that are not finite.
    """
    rewarded = RewardedTokens.of(objective.credit, rewards, mask, token_rewards)
    _, returns = critic_advantages(objective, rewarded, values)
    return torch.where(mask.bool() & ~rewarded.scored[:, None], values, returns)


def value_losses(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None) -> Tensor:
    """Loss of each token's value, 1/2 max((V - ret)^2, (clip(V, V_old +- value_clip) - ret)^2), of the same shape.

    Differentiable with respect to `values` only; a value that moved further than value_clip towards its return has no
    gradient. PPO's code (OpenAI baselines) has the clip, its paper has not; none: the squared error.
    """
    old_values, returns = old_values.detach(), returns.detach()
    losses = (values - returns).square()
    if value_clip is not None:
        clipped = values.clamp(old_values - value_clip, old_values + value_clip)
        losses = torch.maximum(losses, (clipped - returns).square())
    return losses / 2


@torch.no_grad()
def value_metrics(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None) -> dict[str, float]:
    """Metrics of N tokens, all arguments [N]; empty if there is no token.

    * value/explained_variance: 1 - Var(return - V_old) / Var(return), of the values that made the advantages: 1 is
      perfect, 0 no better than a constant, negative worse. Where all returns are equal (up to the rounding of a
      return, EQUAL of the largest number): 1 if all errors are too, else 0;
    * value/clip_frac: share of tokens whose loss is that of the clipped value; 0 without a clip;
    * value/mean, value/return_mean: of the new values and of the returns.
    """
    if values.numel() == 0:
        return {}
    errors = returns - old_values
    rounding = EQUAL * torch.maximum(returns.abs().max(), old_values.abs().max())
    explained = torch.where(
        returns.max() - returns.min() > rounding,
        1 - errors.var(correction=0) / returns.var(correction=0),
        (errors.max() - errors.min() <= rounding).to(errors.dtype),
    )
    clipped = value_losses(values, old_values, returns, value_clip) > value_losses(values, old_values, returns, None)
    metrics = {
        "value/explained_variance": explained,
        "value/clip_frac": clipped.to(values.dtype).mean(),
        "value/mean": values.mean(),
        "value/return_mean": returns.mean(),
    }
    return {name: value.item() for name, value in metrics.items()}


def _from_the_end(terms: Tensor, factors: Tensor) -> Tensor:
    """[B, T + 1] x_t = terms_t + factors_t x_(t+1), with x = 0 after the last of the T columns."""
    x = terms.new_zeros(terms.shape[0])
    columns = [x]
    for term, factor in zip(reversed(terms.unbind(1)), reversed(factors.unbind(1)), strict=True):
        x = torch.addcmul(term, factor, x)
        columns.append(x)
    return torch.stack(columns[::-1], 1)
