"""What a rollout batch was rewarded for: one reward a completion, and rewards at its tokens besides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from algorithms.objective import Credit


@dataclass(frozen=True, eq=False)
class RewardedTokens:
    """Checked rewards of B completions and of their T tokens, with zeros in place of all that does not count."""

    rewards: Tensor
    """[B] of the completions; 0 for one that could not be scored."""
    scored: Tensor
    """[B] bool: the completion could be scored."""
    mask: Tensor
    """[B, T] bool: mask-1 tokens of scored completions."""
    token_rewards: Tensor
    """[B, T] besides the completion's; 0 outside the mask."""
    marked: Tensor
    """[B, T] bool: tokens of the mask that were given a reward of their own, be it 0."""

    @classmethod
    def of(cls, credit: Credit, rewards: Tensor, mask: Tensor, token_rewards: Tensor | None) -> Self:
        """rewards [B], NaN: could not be scored; mask [B, T]; token_rewards [B, T], NaN under credit=steps: no step
        ends at this token.

        Raises ValueError for shapes that do not fit, infinite rewards, and NaN token rewards where no steps are asked
        for.
        """
        if rewards.ndim != 1:
            raise ValueError(f"rewards has shape {list(rewards.shape)}; it must be [B], one for each completion")
        B = rewards.shape[0]
        if mask.ndim != 2 or mask.shape[0] != B:
            raise ValueError(f"mask has shape {list(mask.shape)}; it must be [{B}, T], a row for each reward")
        if rewards.isinf().any():
            rows = rewards.isinf().nonzero().flatten().tolist()
            raise ValueError(
                f"infinite rewards in rows {rows}; give a finite reward, or NaN for what could not be scored"
            )
        if not rewards.is_floating_point():
            rewards = rewards.to(torch.get_default_dtype())
        scored = ~rewards.isnan()
        rewards = torch.where(scored, rewards, 0)
        mask = mask.bool() & scored[:, None]
        if token_rewards is None:
            zeros = torch.zeros(mask.shape, dtype=rewards.dtype, device=rewards.device)
            return cls(rewards, scored, mask, zeros, torch.zeros_like(mask))
        check_shape("token_rewards", token_rewards, mask)
        marked = mask & ~token_rewards.isnan()
        token_rewards = torch.where(marked, token_rewards, 0).to(rewards.dtype)
        if credit != "steps" and not torch.equal(marked, mask):
            rows = (mask & ~marked).any(1).nonzero().flatten().tolist()
            raise ValueError(
                f"NaN token_rewards in rows {rows}; NaN says that no step ends at a token, which only credit=steps "
                "takes: give 0 for no reward"
            )
        if token_rewards.isinf().any():
            rows = token_rewards.isinf().any(1).nonzero().flatten().tolist()
            raise ValueError(f"infinite token_rewards in rows {rows}; give finite ones")
        return cls(rewards, scored, mask, token_rewards, marked)

    @cached_property
    def totals(self) -> Tensor:
        """[B] the completion's reward and those of its tokens together."""
        return self.rewards + self.token_rewards.sum(1)

    @cached_property
    def last(self) -> Tensor:
        """[B, T] bool: the last mask-1 token of each scored completion."""
        return self.mask & (self.mask.flip(1).cumsum(1).flip(1) == 1)

    @cached_property
    def at_tokens(self) -> Tensor:
        """[B, T] all rewards where they are paid: the completion's at its last token; 0 outside the mask."""
        return self.token_rewards + torch.where(self.last, self.rewards[:, None], 0)


def check_shape(name: str, tensor: Tensor, mask: Tensor) -> None:
    """Raises ValueError unless the tensor has the shape of the mask."""
    if tensor.shape != mask.shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be that of mask, {list(mask.shape)}")
