"""What a policy loss is computed from. Shapes: B completions, T tokens of the longest one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_PER_TOKEN = ("old_logp", "mask", "ref_logp", "sampler_logp", "entropy", "selected", "values", "old_values", "returns")


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """A micro-batch: some rows of one optimiser step, in any order. Raises ValueError for what does not fit together.

    What stands at positions with mask 0 is never used, NaN and infinities included. A batch without any of the `step_*`
    numbers is a whole optimiser step, from which they are counted.
    """

    logp: Tensor
    """[B, T] log-probs under the policy that is being updated, at the sampling temperature; carries the gradient."""
    old_logp: Tensor
    """[B, T] log-probs under the policy that sampled, recomputed by the trainer."""
    mask: Tensor
    """[B, T] 1 or true for tokens that enter the loss, else 0."""
    advantages: Tensor
    """[B] or [B, T], computed over the whole rollout batch."""
    ref_logp: Tensor | None = None
    """[B, T] log-probs under the reference policy of the KL penalty."""
    sampler_logp: Tensor | None = None
    """[B, T] log-probs that the sampler reported, for the sampler correction."""
    entropy: Tensor | None = None
    """[B, T] entropy over the vocabulary, in nats; with a gradient where a bonus is to raise it."""
    selected: Tensor | None = None
    """[B, T] bool: this batch's part of what `select_tokens` chose over the whole step."""
    values: Tensor | None = None
    """[B, T] the critic's values, with gradient; none: the loss has no value term."""
    old_values: Tensor | None = None
    """[B, T] the critic's values when the rollout was drawn."""
    returns: Tensor | None = None
    """[B, T] what the values are to become."""
    groups: Tensor | None = None
    """[B] integers: rows with equal numbers answer one prompt."""
    group_tokens: Tensor | None = None
    """[B] mask-1 tokens in the whole group of each row."""
    max_completion_tokens: int | None = None
    """The rollout's limit, the length of constant_length."""
    step_sequences: int | None = None
    """Completions in the whole optimiser step, fully masked ones included."""
    step_tokens: int | None = None
    """Mask-1 tokens in the whole optimiser step."""
    step_groups: int | None = None
    """Groups in the whole optimiser step, fully masked ones included."""
    step_micro_batches: int | None = None
    """Micro-batches that the optimiser step is split into."""

    def __post_init__(self) -> None:
        if self.logp.ndim != 2:
            raise ValueError(f"logp has shape {list(self.logp.shape)}; it must be [B, T]")
        B, T = self.logp.shape
        for name in _PER_TOKEN:
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None and tensor.shape != (B, T):
                raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be that of logp, {[B, T]}")
        if self.advantages.shape not in ((B,), (B, T)):
            raise ValueError(f"advantages has shape {list(self.advantages.shape)}; it must be {[B]} or {[B, T]}")
        for name, tensor in (("groups", self.groups), ("group_tokens", self.group_tokens)):
            if tensor is not None and tensor.shape != (B,):
                raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be {[B]}")
        if self.selected is not None and self.selected.dtype != torch.bool:
            raise ValueError(f"selected is of {self.selected.dtype}; it must be bool, as `select_tokens` gives it")
        if not ((self.mask == 0) | (self.mask == 1)).all():
            raise ValueError("mask has values other than 0 and 1; to weigh tokens, scale their advantages")
        self._check_step()

    @property
    def is_whole_step(self) -> bool:
        """Whether these rows are all of their optimiser step."""
        counts = (self.step_sequences, self.step_tokens, self.step_groups, self.step_micro_batches)
        return all(count is None for count in counts)

    def _check_step(self) -> None:
        for name in ("max_completion_tokens", "step_sequences", "step_tokens", "step_groups", "step_micro_batches"):
            count: int | None = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name}={count}; it must be at least 1")
        B = self.logp.shape[0]
        if self.step_sequences is not None and self.step_sequences < B:
            raise ValueError(
                f"step_sequences={self.step_sequences}, but this micro-batch alone has {B} rows of the step"
            )
        if self.step_tokens is not None and self.step_tokens < (tokens := int(self.mask.sum())):
            raise ValueError(f"step_tokens={self.step_tokens}, but this micro-batch alone has {tokens} of the step")
        if self.group_tokens is not None and (self.group_tokens < self.mask.sum(1)).any():
            raise ValueError("group_tokens has a group with fewer tokens than one of its rows has in mask")


def masked(mask: Tensor, tensor: Tensor) -> Tensor:
    """The tensor where the mask (bool, of its shape) is, else 0, with gradient; in float32 at least."""
    return torch.where(mask, tensor.to(torch.promote_types(tensor.dtype, torch.float32)), 0)
