"""Which completions of a rollout batch are learned from: the knobs `overlong` and `zero_std`."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from algorithms import Objective
from harness.training.scored_rollout import ScoredRollout


class Filtered(NamedTuple):
    """The batch to learn from (it can be empty) and what was taken out of it."""

    rollout: ScoredRollout
    rows_dropped: int
    groups_dropped: int
    kept: Tensor
    """Int64: the rows of the whole batch that are left, in their order."""


def filter_rows(objective: Objective, rollout: ScoredRollout, truncated: Tensor) -> Filtered:
    """Apply `overlong` and then `zero_std` to a batch; truncated [N] bool: cut at the completion limit.

    overlong: `mask_after` takes truncated completions out of the loss only; `mask_before` also makes their reward NaN,
    so that no baseline or std sees it; `drop` removes them. zero_std: groups whose scored rewards are all equal are
    kept, masked out of the loss, or removed (`drop`; `refill`, whose other half is to draw more, see
    `harness.run.experience`).
    """
    kept = torch.ones_like(truncated)
    match objective.overlong.type:
        case "mask_after":
            rollout = replace(rollout, loss_mask=rollout.loss_mask & ~truncated[:, None])
        case "mask_before":
            rollout = replace(
                rollout,
                loss_mask=rollout.loss_mask & ~truncated[:, None],
                rewards=rollout.rewards.masked_fill(truncated, torch.nan),
            )
        case "drop":
            kept = ~truncated
    alike = zero_std_rows(rollout.rewards.masked_fill(~kept, torch.nan), rollout.groups)
    if objective.zero_std == "mask":
        rollout = replace(rollout, loss_mask=rollout.loss_mask & ~alike[:, None])
    elif objective.zero_std != "keep":
        kept = kept & ~alike
    if kept.all():
        return Filtered(rollout, 0, 0, torch.arange(len(kept)))
    before = len(torch.unique(rollout.groups))
    rollout = rollout.rows(kept)
    groups_dropped = before - len(torch.unique(rollout.groups))
    return Filtered(rollout, int((~kept).sum()), groups_dropped, kept.nonzero()[:, 0])


def zero_std_rows(rewards: Tensor, groups: Tensor) -> Tensor:
    """Bool [N]: rows of groups whose scored rewards [N] are all equal, so also of groups with none or one."""
    group = torch.unique(groups, return_inverse=True)[1]
    scored = ~rewards.isnan()
    count = int(group.max()) + 1 if len(group) else 0

    def extreme(fill: float, reduce: str) -> Tensor:
        values = rewards.masked_fill(~scored, fill)
        return torch.full((count,), fill, dtype=rewards.dtype).scatter_reduce(0, group, values, reduce)[group]

    return extreme(torch.inf, "amin") >= extreme(-torch.inf, "amax")
