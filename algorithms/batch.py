"""What a policy loss is computed from. Shapes: B completions, T tokens of the longest one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """A micro-batch: some rows of one optimiser step, in any order. Raises ValueError for shapes that do not fit.

    What stands at positions with mask 0 is never used, NaN and infinities included.
    """

    logp: Tensor
    """[B, T] log-probs under the policy that is being updated, at the sampling temperature; carries the gradient."""
    old_logp: Tensor
    """[B, T] log-probs under the policy that sampled, recomputed by the trainer."""
    mask: Tensor
    """[B, T] 1 or true for tokens that enter the loss, else 0."""
    advantages: Tensor
    """[B] or [B, T], computed over the whole rollout batch."""
    groups: Tensor | None = None
    """[B] integers: rows with equal numbers answer one prompt."""
    max_completion_tokens: int | None = None
    """The rollout's limit, the length of constant_length."""
    step_sequences: int | None = None
    """Completions in the whole optimiser step, fully masked ones included; none: this batch is the whole step."""
    step_tokens: int | None = None
    """Mask-1 tokens in the whole optimiser step; none: this batch is the whole step."""

    def __post_init__(self) -> None:
        if self.logp.ndim != 2:
            raise ValueError(f"logp has shape {list(self.logp.shape)}; it must be [B, T]")
        B, T = self.logp.shape
        for name, tensor in (("old_logp", self.old_logp), ("mask", self.mask)):
            if tensor.shape != (B, T):
                raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be that of logp, {[B, T]}")
        if self.advantages.shape not in ((B,), (B, T)):
            raise ValueError(f"advantages has shape {list(self.advantages.shape)}; it must be {[B]} or {[B, T]}")
        if self.groups is not None and self.groups.shape != (B,):
            raise ValueError(f"groups has shape {list(self.groups.shape)}; it must be {[B]}")
        for name, value in (
            ("max_completion_tokens", self.max_completion_tokens),
            ("step_sequences", self.step_sequences),
            ("step_tokens", self.step_tokens),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}; it must be at least 1")
        if not ((self.mask == 0) | (self.mask == 1)).all():
            raise ValueError("mask has values other than 0 and 1; to weigh tokens, scale their advantages")
        if self.step_sequences is not None and self.step_sequences < B:
            raise ValueError(
                f"step_sequences={self.step_sequences}, but this micro-batch alone has {B} rows of the step"
            )
        if self.step_tokens is not None and self.step_tokens < (tokens := int(self.mask.sum())):
            raise ValueError(f"step_tokens={self.step_tokens}, but this micro-batch alone has {tokens} of the step")
