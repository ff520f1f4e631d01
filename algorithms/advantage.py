"""Advantages: how much better each completion, or each of its tokens, did than expected."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.credit import returns_to_go, step_advantages
from algorithms.critic import critic_advantages
from algorithms.objective import Objective
from algorithms.rewarded_tokens import RewardedTokens
from algorithms.statistics import deviations, sums, variance, whitened


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
    """Advantage of every token [B, T]: (reward - baseline) / scale, 0 where mask is 0.

    rewards [B]; groups [B] integers, equal for completions of one prompt, in any order and number; mask [B, T].
    Give the whole rollout batch: batch statistics are over these rows. Sources at `Objective`'s knobs. Besides:

    * values [B, T] of the tokens' states, for baseline=critic;
    * token_rewards [B, T]: rewards at tokens besides the completion's, such as -beta KL. baseline=none adds up those
      from the token on (REINFORCE++), the critic discounts them (GAE), credit=steps takes them for the steps' rewards,
      with NaN for tokens at which no step ends; for every other baseline they are part of the completion's reward;
    * peers [B]: for random_peer, the row of the group whose reward is the baseline of this row;
    * mini_batches [B] integers: for mini_batch_std, equal for the rows of one optimiser step; none: all rows are one.

    Defined corner cases:
    * a NaN reward (could not be scored) is left out of every baseline and std; its row gets 0, and so does a row whose
      random peer it is;
    * a group of equal rewards, so also one of a single completion, gets exactly 0 from every group baseline, also after
      every scale but whiten_tokens, which shifts it by the mean over all tokens, as its source does;
    * a row that is its own random peer gets 0;
    * a fully masked row counts with its reward in baselines and stds (not where lengths weigh, and not among steps) and
      gets 0.

    Raises ValueError for shapes that do not fit, rewards that are not finite, and missing values or peers.
    """
    rewarded = RewardedTokens.of(objective.credit, rewards, mask, token_rewards)
    group = _numbered("groups", groups, rewarded)
    if objective.credit == "steps" and objective.baseline != "critic":
        result = step_advantages(objective, rewarded, group)
    else:
        centred = _centred(objective, rewarded, group, values, peers)
        result = _scaled(objective, rewarded, group, centred, mini_batches)
    result = torch.where(rewarded.mask, result, 0)
    match objective.advantage_sign:
        case "both":
            return result
        case "positive":
            return result.clamp(min=0)
        case "negative":
            return result.clamp(max=0)


def _centred(
    objective: Objective, rewarded: RewardedTokens, group: Tensor, values: Tensor | None, peers: Tensor | None
) -> Tensor:
    """Rewards minus the baseline: [B, T], or [B, 1] where all tokens of a completion have one."""
    totals = rewarded.totals
    count = rewarded.scored.to(totals.dtype)
    match objective.baseline:
        case "none":
            return returns_to_go(rewarded.at_tokens)
        case "critic":
            if values is None:
                raise ValueError("baseline=critic without values: give the value of each token's state, [B, T]")
            return critic_advantages(objective, rewarded, values)[0]
        case "batch_mean":
            centred = deviations(totals, count, torch.zeros_like(group))
        case "group_mean":
            centred = deviations(totals, count, group)
        case "leave_one_out":
            # R - (S - R) / (n - 1) = n / (n - 1) (R - S / n)
            n = sums(count, group)
            centred = deviations(totals, count, group) * n / (n - 1).clamp(min=1)
        case "length_weighted":
            centred = deviations(totals, rewarded.mask.sum(1).to(totals.dtype), group)
        case "random_peer":
            peers = _checked_peers(peers, group)
            centred = torch.where(rewarded.scored[peers], torch.sign(totals - totals[peers]), 0)
    return centred[:, None]


def _scaled(
    objective: Objective, rewarded: RewardedTokens, group: Tensor, centred: Tensor, mini_batches: Tensor | None
) -> Tensor:
    """Centred rewards [B, T] or [B, 1] divided by the scale; the stds of rewards are over completions."""
    totals, ddof, eps = rewarded.totals, objective.scale_ddof, objective.scale_eps
    count, batch = rewarded.scored.to(totals.dtype), torch.zeros_like(group)
    match objective.scale:
        case "none":
            return centred
        case "nonzero_frac":
            return centred * count.sum() / torch.count_nonzero(totals * count).clamp(min=1)
        case "whiten_tokens":
            return whitened(centred.expand_as(rewarded.mask), rewarded.mask, ddof, eps)
        case "group_std":
            squared = variance(totals, count, group, ddof)
        case "batch_std":
            squared = variance(totals, count, batch, ddof)
        case "mini_batch_std":
            step = batch if mini_batches is None else _numbered("mini_batches", mini_batches, rewarded)
            squared = variance(centred[:, 0], count, step, ddof)
    return centred / (squared.sqrt() + eps)[:, None]


def _numbered(name: str, labels: Tensor, rewarded: RewardedTokens) -> Tensor:
    """[B] int64 below B: rows with equal labels have equal numbers."""
    shape = rewarded.scored.shape
    if labels.shape != shape:
        raise ValueError(f"{name} has shape {list(labels.shape)}; it must be that of rewards, {list(shape)}")
    numbers: Tensor = torch.unique(labels, return_inverse=True)[1]
    return numbers


def _checked_peers(peers: Tensor | None, group: Tensor) -> Tensor:
    if peers is None:
        raise ValueError("baseline=random_peer without peers: give each row the row that it is compared with, [B]")
    B = len(group)
    if peers.shape != group.shape:
        raise ValueError(f"peers has shape {list(peers.shape)}; it must be that of rewards, {[B]}")
    strangers = (peers < 0) | (peers >= B) | (group[peers.clamp(0, max(0, B - 1))] != group)
    if strangers.any():
        rows = strangers.nonzero().flatten().tolist()
        raise ValueError(f"the peers of rows {rows} are not rows of their groups; number rows from 0 to {B - 1}")
    return peers
