"""`train.*` and `budget.*`: optimiser steps, and the limits on what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from harness.config.model import OF_ALL
from harness.config.optimizer import AdamW, Optimizer
from harness.settings import InWords, OnlyWith, Settings
from harness.settings.marks import NOT_HASHED, YOUNGER, Acts

Sharding = Literal["rows", "fully"]
BY_ALL = Acts("train", any_trainer=True)


class TrainSpec(Settings):
    device: Annotated[str, InWords(type=lambda: "auto | cpu | cuda | cuda:N"), OF_ALL] = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$", description="auto = cuda where there is one"
    )
    steps: Annotated[int, BY_ALL] = Field(
        ge=1, le=10_000_000, description="rollout batches; budget.tokens may end the cell earlier"
    )
    updates_per_rollout: int = Field(
        1, ge=1, le=10_000, description="mini-batches per pass, of whole groups, one optimiser step each"
    )
    epochs: int = Field(1, ge=1, le=10_000, description="passes over each rollout batch")
    learning_rate: float = Field(gt=0, description="learning rate after the warm-up")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="after the warm-up; linear and cosine fall to 0 at train.steps"
    )
    warmup_steps: int = Field(0, ge=0, le=10_000_000, description="rollout batches of linear warm-up")
    weight_decay: float = Field(
        0.0, ge=0, description="weight decay: beside the gradient's step with adamw and muon, within it with sgd"
    )
    optimizer: Annotated[Optimizer, YOUNGER] = AdamW()
    max_grad_norm: float = Field(1.0, gt=0, description="gradients of a larger norm are scaled down to it")
    micro_batch_tokens: int = Field(16384, ge=1, description="tokens per forward pass, padding included; bounds memory")
    logits_chunk_tokens: int = Field(
        512, ge=1, description="tokens whose logits are held at once; bounds memory where the vocabulary is large"
    )
    activation_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass instead of keeping them: less memory, slower"
    )
    reference_rows: int = Field(
        16, ge=0, description="completions per step on which the KL to the starting policy is measured; 0 = none"
    )
    optimizer_reset: Literal["never", "per_rollout"] = Field(
        "never", description="when the optimiser's moments start again from 0: never, or with each rollout batch"
    )
    token_records_max_tokens: Annotated[int, NOT_HASHED] = Field(
        20_000,
        ge=0,
        description="keep with the rollouts what the update did to each token, in steps that learn from at most this "
        "many completion tokens; never for objectives on pairs; 0 = never",
    )
    checkpoint_every: Annotated[int, BY_ALL] = Field(10, ge=1, description="steps between checkpoints")
    # The number of processes changes no more than rounding, as the number of threads does; each start records it.
    processes: Annotated[int, NOT_HASHED] = Field(
        1, ge=1, le=1024, description="processes that train a cell together, each on its own GPU or CPU core"
    )
    sharding: Annotated[Sharding, OnlyWith("processes", unless=(1,), refused=False), NOT_HASHED] = Field(
        "rows",
        description="what the processes split. rows: the completions of a batch; fully: also the weights, gradients "
        "and optimiser state (FSDP2), for models that one device cannot train",
    )

    def contradictions(self) -> Iterator[str]:
        if self.optimizer.type == "muon" and self.sharding == "fully" and self.processes > 1:
            yield (
                f"optimizer.type=muon with processes={self.processes} and sharding=fully: Muon orthogonalises whole "
                "matrices, and each process would hold a part of them. Set sharding to rows, or optimizer.type to adamw"
            )


class BudgetSpec(Settings):
    tokens: Annotated[int | None, Acts("draw", any_trainer=True)] = Field(
        default=None, ge=1, description="generated tokens that arms are matched on; none = train.steps"
    )
    teacher_tokens: Annotated[int | None, YOUNGER] = Field(
        default=None, ge=1, description="limit on completion tokens scored by the teacher; none = no limit"
    )
    trained_tokens: Annotated[int | None, Acts("draw", "train", any_trainer=True), YOUNGER] = Field(
        default=None,
        ge=1,
        description="completion tokens that gradients are taken of, in each epoch, at which a cell ends; none = no end",
    )
    flops: Annotated[float | None, Acts("draw", "train"), YOUNGER] = Field(
        default=None,
        gt=0,
        description="floating-point operations of sampling and training, estimated from tokens and parameters, at "
        "which a cell ends; none = no end",
    )

    @property
    def limits(self) -> dict[str, tuple[str, float]]:
        """The limits that are set, with their names, by the column of steps.jsonl that counts what is spent."""
        limits = {
            "generated_tokens": ("token budget", self.tokens),
            "teacher_tokens": ("budget of teacher tokens", self.teacher_tokens),
            "trained_tokens": ("budget of trained tokens", self.trained_tokens),
            "flops": ("FLOP budget", self.flops),
        }
        return {column: (name, limit) for column, (name, limit) in limits.items() if limit is not None}

    def most_used(self, spent: Mapping[str, float | None]) -> tuple[float, str]:
        """Return the used share of the limit that is used most, and its name; (0, "") without a limit.

        spent: by column of steps.jsonl.
        """
        used = [((spent.get(column) or 0) / limit, name) for column, (name, limit) in self.limits.items()]
        return max(used, default=(0.0, ""))
