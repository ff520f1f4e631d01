"""Advantages: how much better each completion, or each of its tokens, did than expected.

Rewards come as `RewardedTokens`. A baseline is subtracted from them and the result is divided by a scale. `credit`
decides which tokens get the quotient. A segment is a set of entries that share a mean or std: a prompt's group, an
optimiser step, or the whole batch. `segments` [N] is the number of each entry's segment, below N.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from algorithms.critic import gae
from algorithms.objective import Credit, Objective
from algorithms.pass_k import SetRewards
from harness.errors import InvalidError

REWARD_WHITENING_EPS = 1e-8


@torch.no_grad()
def advantages(
    objective: Objective,
    rewards: Tensor,
    groups: Tensor,
    mask: Tensor,
    values: Tensor | None = None,
    token_rewards: Tensor | None = None,
    peers: Tensor | None = None,
    mini_batches: Tensor | None = None,
) -> Tensor:
    """Compute the advantage of every token [B, T]: (reward - baseline) / scale, and 0 where mask is 0.

    Pass the whole rollout batch, because batch statistics are taken over these rows. The knobs of `Objective` name
    their sources.

    * rewards [B].
    * groups [B] integers: equal for completions of one prompt. A group may have any size, and its rows any order.
    * mask [B, T].
    * values [B, T]: the critic's values of the tokens' states, for baseline=critic.
    * token_rewards [B, T]: further rewards at tokens, such as -beta KL. baseline=none credits a token with its own and
      all later ones (REINFORCE++). The critic discounts them (GAE). credit=steps takes them as the rewards of steps,
      with NaN at tokens where no step ends. Every other baseline adds their sum to the completion's reward.
    * peers [B]: for random_peer, the row of the same group whose reward is this row's baseline.
    * mini_batches [B] integers: for mini_batch_std, equal for rows of the same optimiser step. None: all rows form one
      step.

    Corner cases:

    * A NaN reward (the completion could not be scored) is left out of every baseline and std. Its row gets 0, and so
      does every row whose random peer it is.
    * With pass_k, a group in which k or fewer completions could be scored gets exactly 0: it has at most one set.
    * A group of equal rewards, or of a single completion, gets exactly 0 from every group baseline. This holds after
      every scale except whiten_tokens, which subtracts the mean over all tokens, as its source does.
    * A row that is its own random peer gets 0.
    * A fully masked row gets 0. Its reward still counts in baselines and stds, except in length_weighted, where its
      weight is 0, and with credit=steps, where it has no step.

    Raises ValueError for shapes that do not fit, infinite rewards, NaN token rewards without credit=steps, missing
    values or peers, and peers outside the row's group.
    """
    rewarded = RewardedTokens.of(objective.credit, rewards, mask, token_rewards)
    group = _numbered("groups", groups, rewarded)
    if objective.credit == "steps" and objective.baseline != "critic":
        result = _step_advantages(objective, rewarded, group)
    else:
        centred = _centred(objective, rewarded, group, values, peers)
        result = _scaled(objective, rewarded, group, centred, mini_batches)
    # [B, 1] becomes [B, T] here, and returns to go are not 0 at masked tokens.
    result = torch.where(rewarded.mask, result, 0)
    match objective.advantage_sign:
        case "both":
            return result
        case "positive":
            return result.clamp(min=0)
        case "negative":
            return result.clamp(max=0)


def policy_waits(objective: Objective, step: int) -> bool:
    """Return whether `step` belongs to the critic's warm-up, during which only the critic is trained."""
    return objective.baseline == "critic" and step <= objective.critic.warmup_steps


def value_targets(
    objective: Objective, rewards: Tensor, mask: Tensor, values: Tensor, token_rewards: Tensor | None = None
) -> Tensor:
    """Compute the returns [B, T] that the critic is fitted to, 0 where mask is 0.

    The arguments are those of `advantages`. If a completion could not be scored, its targets are its own values, so it
    contributes nothing to the critic's loss.
    Raises ValueError for shapes that do not fit, infinite rewards, and NaN token rewards without credit=steps.
    """
    rewarded = RewardedTokens.of(objective.credit, rewards, mask, token_rewards)
    _, returns = _critic_advantages(objective, rewarded, values)
    return torch.where(mask.bool() & ~rewarded.scored[:, None], values, returns)


@dataclass(frozen=True, eq=False)
class RewardedTokens:
    """Validated rewards of B completions and their T tokens, 0 where a completion is unscored or a token is masked."""

    rewards: Tensor
    """[B] rewards of the completions; 0 for one that could not be scored."""
    scored: Tensor
    """[B] bool: whether the completion could be scored."""
    mask: Tensor
    """[B, T] bool: mask-1 tokens of scored completions."""
    token_rewards: Tensor
    """[B, T] rewards of single tokens, without the completion's reward; 0 outside the mask."""
    marked: Tensor
    """[B, T] bool: mask-1 tokens that have a token reward, which may be 0."""

    @classmethod
    def of(cls, credit: Credit, rewards: Tensor, mask: Tensor, token_rewards: Tensor | None) -> Self:
        """Validate the arguments of `advantages` and build the rewards from them.

        rewards [B]: NaN for a completion that could not be scored. mask [B, T]. token_rewards [B, T]: NaN for a token
        at which no step ends (credit=steps only).
        Raises ValueError for shapes that do not fit, infinite rewards, and NaN token rewards without credit=steps.
        """
        if rewards.ndim != 1:
            raise InvalidError(
                "algorithms.shape", name="rewards", shape=list(rewards.shape), needed="[B], one for each completion"
            )
        B = rewards.shape[0]
        if mask.ndim != 2 or mask.shape[0] != B:
            needed = f"[{B}, T], a row for each reward"
            raise InvalidError("algorithms.shape", name="mask", shape=list(mask.shape), needed=needed)
        if rewards.isinf().any():
            rows = rewards.isinf().nonzero().flatten().tolist()
            raise InvalidError("algorithms.rewards_infinite", rows=rows)
        if not rewards.is_floating_point():
            rewards = rewards.to(torch.get_default_dtype())
        scored = ~rewards.isnan()
        rewards = torch.where(scored, rewards, 0)
        # From here on a completion that could not be scored has no tokens, so no sum over tokens counts it.
        mask = mask.bool() & scored[:, None]
        if token_rewards is None:
            zeros = torch.zeros(mask.shape, dtype=rewards.dtype, device=rewards.device)
            return cls(rewards, scored, mask, zeros, torch.zeros_like(mask))
        _check_shape("token_rewards", token_rewards, mask)
        # NaN marks a token without a reward of its own. A reward of 0 is one, and with credit=steps it ends a step.
        marked = mask & ~token_rewards.isnan()
        token_rewards = torch.where(marked, token_rewards, 0).to(rewards.dtype)
        if credit != "steps" and not torch.equal(marked, mask):
            rows = (mask & ~marked).any(1).nonzero().flatten().tolist()
            raise InvalidError("algorithms.token_rewards_nan", rows=rows)
        if token_rewards.isinf().any():
            rows = token_rewards.isinf().any(1).nonzero().flatten().tolist()
            raise InvalidError("algorithms.token_rewards_infinite", rows=rows)
        return cls(rewards, scored, mask, token_rewards, marked)

    @cached_property
    def totals(self) -> Tensor:
        """The reward of each completion plus the sum of its token rewards: [B]."""
        return self.rewards + self.token_rewards.sum(1)

    @cached_property
    def last(self) -> Tensor:
        """The last mask-1 token of each scored completion: [B, T] bool."""
        # The number of mask-1 tokens from here to the end is 1 at the last of them and at any mask-0 tokens just before
        # it. `self.mask &` removes the mask-0 tokens.
        return self.mask & (self.mask.flip(1).cumsum(1).flip(1) == 1)

    @cached_property
    def at_tokens(self) -> Tensor:
        """Token rewards, plus the completion's reward at its last token: [B, T], 0 outside the mask."""
        return self.token_rewards + torch.where(self.last, self.rewards[:, None], 0)


def _check_shape(name: str, tensor: Tensor, mask: Tensor) -> None:
    """Raise ValueError unless the tensor has the shape of the mask."""
    if tensor.shape != mask.shape:
        needed = f"that of mask, {list(mask.shape)}"
        raise InvalidError("algorithms.shape", name=name, shape=list(tensor.shape), needed=needed)


def _centred(
    objective: Objective, rewarded: RewardedTokens, group: Tensor, values: Tensor | None, peers: Tensor | None
) -> Tensor:
    """Subtract the baseline from the rewards: [B, T], or [B, 1] if all tokens of a completion share one value."""
    totals = rewarded.totals if objective.pass_k == 1 else _of_sets(objective, rewarded, group).values
    count = rewarded.scored.to(totals.dtype)
    match objective.baseline:
        case "none":
            # Without token rewards this is the completion's reward at each of its tokens.
            return _returns_to_go(rewarded.at_tokens)
        case "critic":
            if values is None:
                raise InvalidError("algorithms.values_missing")
            return _critic_advantages(objective, rewarded, values)[0]
        case "batch_mean":
            centred = _deviations(totals, count, torch.zeros_like(group))
        case "group_mean":
            centred = _deviations(totals, count, group)
        case "leave_one_out":
            # For k = 1: R - (S - R) / (n - 1) = n / (n - 1) (R - S / n). In general, let V be the mean over the sets of
            # k with the row, W that over the sets without it, and M that over all sets. A share k / n of all sets has
            # the row, so M = k / n V + (n - k) / n W. Hence V - W = n / (n - k) (V - M).
            n = _sums(count, group)
            centred = _deviations(totals, count, group) * n / (n - objective.pass_k).clamp(min=1)
        case "length_weighted":
            # OPO weights each reward by the completion's length. The length here counts only tokens that enter the
            # loss, so a fully masked completion has weight 0.
            centred = _deviations(totals, rewarded.mask.sum(1).to(totals.dtype), group)
        case "random_peer":
            peers = _checked_peers(peers, group)
            # Only the sign counts (BRPO, 2506.00103): an advantage is 1, 0 or -1.
            centred = torch.where(rewarded.scored[peers], torch.sign(totals - totals[peers]), 0)
    return centred[:, None]


def _scaled(
    objective: Objective, rewarded: RewardedTokens, group: Tensor, centred: Tensor, mini_batches: Tensor | None
) -> Tensor:
    """Divide the centred rewards [B, T] or [B, 1] by the scale. Stds are over completions, except in whiten_tokens."""
    totals, ddof, eps = rewarded.totals, objective.scale_ddof, objective.scale_eps
    count, batch = rewarded.scored.to(totals.dtype), torch.zeros_like(group)
    match objective.scale:
        case "none":
            return centred
        case "nonzero_frac":
            # As in verl: the share of rewards that are not 0. GPG's paper counts groups of equal rewards instead.
            return centred * count.sum() / torch.count_nonzero(totals * count).clamp(min=1)
        case "whiten_tokens":
            return _whitened(centred.expand_as(rewarded.mask), rewarded.mask, ddof, eps)
        case "group_std" if objective.pass_k > 1:
            squared = _of_sets(objective, rewarded, group).variance
        case "group_std":
            squared = _variance(totals, count, group, ddof)
        case "batch_std":
            # The std of raw rewards (LitePPO) includes the spread between prompts. mini_batch_std uses centred rewards.
            squared = _variance(totals, count, batch, ddof)
        case "mini_batch_std":
            step = batch if mini_batches is None else _numbered("mini_batches", mini_batches, rewarded)
            squared = _variance(centred[:, 0], count, step, ddof)
    # As in verl, eps is added to the std here but to the variance in `_whitened`.
    return centred / (squared.sqrt() + eps)[:, None]


def _of_sets(objective: Objective, rewarded: RewardedTokens, group: Tensor) -> SetRewards:
    return SetRewards.of(rewarded.totals, rewarded.scored, group, objective.pass_k, objective.scale_ddof)


def _numbered(name: str, labels: Tensor, rewarded: RewardedTokens) -> Tensor:
    """Replace the labels [B] by int64 numbers below B. Rows with equal labels get equal numbers.

    Raises ValueError if the labels do not have the shape of the rewards.
    """
    shape = rewarded.scored.shape
    if labels.shape != shape:
        needed = f"that of rewards, {list(shape)}"
        raise InvalidError("algorithms.shape", name=name, shape=list(labels.shape), needed=needed)
    numbers: Tensor = torch.unique(labels, return_inverse=True)[1]
    return numbers


def _checked_peers(peers: Tensor | None, group: Tensor) -> Tensor:
    if peers is None:
        raise InvalidError("algorithms.peers_missing")
    B = len(group)
    if peers.shape != group.shape:
        raise InvalidError("algorithms.shape", name="peers", shape=list(peers.shape), needed=f"that of rewards, {[B]}")
    # Indices out of range are reported by the first two terms. The clamp only lets the third term index `group`.
    strangers = (peers < 0) | (peers >= B) | (group[peers.clamp(0, max(0, B - 1))] != group)
    if strangers.any():
        rows = strangers.nonzero().flatten().tolist()
        raise InvalidError("algorithms.peers_of_other_groups", rows=rows, last=B - 1)
    return peers


def _critic_advantages(objective: Objective, rewarded: RewardedTokens, values: Tensor) -> tuple[Tensor, Tensor]:
    """Compute advantages and returns [B, T] by GAE over all rewards, with the objective's critic knobs.

    The advantages are not whitened. Raises ValueError if `values` does not have the shape of the mask, [B, T].
    """
    _check_shape("values", values, rewarded.mask)
    rewards, critic = rewarded.at_tokens, objective.critic
    if critic.whiten_rewards:
        # TRL's whiten(shift_mean=False): the variance becomes 1 and the mean is kept. Adding the mean also writes
        # outside the mask, but `gae` does not read there.
        mean = rewards[rewarded.mask].mean()
        rewards = _whitened(rewards, rewarded.mask, ddof=1, eps=REWARD_WHITENING_EPS) + mean
    return gae(rewards, values.to(rewards.dtype), rewarded.mask, critic.gamma, critic.lam)


def _returns_to_go(rewards: Tensor) -> Tensor:
    """Return for each token the sum of its own and all later rewards of its completion: [B, T]."""
    return rewards.flip(1).cumsum(1).flip(1)


def _step_advantages(objective: Objective, rewarded: RewardedTokens, group: Tensor) -> Tensor:
    """Compute the advantages [B, T] of process supervision (DeepSeekMath, 2402.03300, section 4.1.3).

    A step ends at every token that has a token reward, and at the completion's last token. The last step also gets the
    completion's reward. The rewards of all steps of a group are standardised together. A token's advantage is the sum
    of the standardised rewards of all steps that end at this token or later. A fully masked completion has no steps.

    group [B] int64, below B.
    """
    ends = rewarded.marked | rewarded.last
    weights = ends.flatten().to(rewarded.rewards.dtype)
    # One entry per token. The weights are 1 where a step ends and 0 elsewhere, so means and stds are over steps.
    segments = group[:, None].expand_as(ends).flatten()
    rewards = rewarded.at_tokens.flatten()
    standardised = _deviations(rewards, weights, segments)
    if objective.scale == "group_std":
        std = _variance(rewards, weights, segments, objective.scale_ddof).sqrt()
        standardised = standardised / (std + objective.scale_eps)
    return _returns_to_go(torch.where(ends, standardised.view_as(ends), 0))


def _deviations(values: Tensor, weights: Tensor, segments: Tensor) -> Tensor:
    """Subtract from each value the weighted mean of its segment: [N].

    values [N], weights [N], segments [N] int64. A segment gives exactly 0 if its values are equal or its weights are
    all 0.
    """
    # The mean of equal floats may be rounded, but the mean of zeros is exact. So the lowest value is subtracted first.
    counted = torch.where(weights > 0, values, torch.inf)
    lowest = torch.full_like(values, torch.inf).scatter_reduce(0, segments, counted, "amin")[segments]
    raised = torch.where(lowest.isinf(), 0, values - lowest)
    return raised - _sums(weights * raised, segments) / _sums(weights, segments).clamp(min=1)


def _variance(values: Tensor, weights: Tensor, segments: Tensor, ddof: int) -> Tensor:
    """Return for each value the variance of its segment [N], with divisor max(1, sum of weights - ddof)."""
    squares = weights * _deviations(values, weights, segments) ** 2
    return _sums(squares, segments) / (_sums(weights, segments) - ddof).clamp(min=1)


def _sums(values: Tensor, segments: Tensor) -> Tensor:
    """Return for each value the sum over its segment: [N]."""
    return torch.zeros_like(values).index_add(0, segments, values)[segments]


def _whitened(values: Tensor, mask: Tensor, ddof: int, eps: float) -> Tensor:
    """Return (value - mean) / sqrt(variance + eps) over all mask-1 tokens, and 0 elsewhere: [B, T]."""
    tokens = values[mask]
    if len(tokens) == 0:
        return torch.zeros_like(values)
    # The lowest value is subtracted first, as in `_deviations`, so that equal values give exactly 0.
    raised = tokens - tokens.min()
    centred = raised - raised.mean()
    scale = (centred.square().sum() / max(1, len(tokens) - ddof) + eps).sqrt()
    return torch.zeros_like(values).masked_scatter(mask, centred / scale)
