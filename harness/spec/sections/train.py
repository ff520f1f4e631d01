"""`train`: optimiser steps, and what they may cost."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.spec.sections.base import Section


class TrainSpec(Section):
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto = cuda where there is one")
    steps: int = Field(ge=1, description="rollout batches; budget.tokens may end the cell earlier")
    updates_per_rollout: int = Field(
        1, ge=1, description="mini-batches a pass, of whole groups, one optimiser step each"
    )
    epochs: int = Field(1, ge=1, description="passes over each rollout batch")
    learning_rate: float = Field(gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="to zero at train.steps")
    warmup_steps: int = Field(0, ge=0, description="rollout batches of linear warm-up")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(16384, ge=1, description="tokens a forward pass, padding included; bounds memory")
    logits_chunk_tokens: int = Field(
        512, ge=1, description="tokens whose logits are held at once; bounds memory where the vocabulary is large"
    )
    activation_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass instead of keeping them: less memory, slower"
    )
    reference_rows: int = Field(
        16, ge=0, description="completions a step on which the KL to the starting policy is measured; 0 = none"
    )
    optimizer_reset: Literal["never", "per_rollout"] = "never"
    token_records_max_tokens: int = Field(
        20_000,
        ge=0,
        description="completion tokens that a step may learn from for what the update did with each to be kept with "
        "its rollouts; of objectives on pairs nothing is kept; 0 = never",
    )
    checkpoint_every: int = Field(10, ge=1, description="steps between checkpoints")
