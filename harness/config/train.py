"""The sections `train` and `budget` of a run spec: optimiser steps, and limits on the cost of training."""

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
        "auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$", description="auto = cuda if there is a GPU, else cpu"
    )
    steps: Annotated[int, BY_ALL] = Field(
        ge=1, le=10_000_000, description="number of rollout batches; budget.tokens may end the cell earlier"
    )
    updates_per_rollout: int = Field(
        1, ge=1, le=10_000, description="mini-batches per pass, each of complete groups and for one optimiser step"
    )
    epochs: int = Field(1, ge=1, le=10_000, description="passes over each rollout batch")
    learning_rate: float = Field(gt=0, description="learning rate after the warm-up")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="schedule after the warm-up; linear and cosine fall to 0 at train.steps"
    )
    warmup_steps: int = Field(0, ge=0, le=10_000_000, description="number of rollout batches with linear warm-up")
    weight_decay: float = Field(
        0.0,
        ge=0,
        description=("weight decay; decoupled from the gradient with adamw and muon, part of the gradient with sgd"),
    )
    optimizer: Annotated[Optimizer, YOUNGER] = AdamW()
    max_grad_norm: float = Field(1.0, gt=0, description="gradients with a larger norm are scaled down to this norm")
    micro_batch_tokens: int = Field(
        16384, ge=1, description=("most tokens per forward pass, padding included; bounds memory")
    )
    logits_chunk_tokens: int = Field(
        512,
        ge=1,
        description=("most tokens whose logits are in memory at once; bounds memory if the vocabulary is large"),
    )
    activation_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass instead of keeping them: less memory, slower"
    )
    reference_rows: int = Field(
        16, ge=0, description="completions per step for which the KL to the starting policy is measured; 0 = none"
    )
    optimizer_reset: Literal["never", "per_rollout"] = Field(
        "never", description="when the optimiser's moments are reset to 0: never, or at each rollout batch"
    )
    token_records_max_tokens: Annotated[int, NOT_HASHED] = Field(
        20_000,
        ge=0,
        description="record with the rollouts what the update did to each token, in steps that train on at most this "
        "many completion tokens; never for objectives on pairs; 0 = never",
    )
    checkpoint_every: Annotated[int, BY_ALL] = Field(10, ge=1, description="steps between checkpoints")
    # Like the number of threads, the number of processes changes only rounding. Each start records it.
    processes: Annotated[int, NOT_HASHED] = Field(
        1, ge=1, le=1024, description="processes that train a cell together, each on its own GPU or CPU core"
    )
    sharding: Annotated[Sharding, OnlyWith("processes", unless=(1,), refused=False), NOT_HASHED] = Field(
        "rows",
        description="what is split among the processes. rows: the completions of a batch; fully: also the weights, "
        "gradients and optimiser state (FSDP2), for models that one device cannot train",
    )

    def contradictions(self) -> Iterator[str]:
        if self.optimizer.type == "muon" and self.sharding == "fully" and self.processes > 1:
            yield (
                f"optimizer.type=muon with processes={self.processes} and sharding=fully: Muon orthogonalises whole "
                "matrices, and each process would hold a part of them. Set sharding to rows, or optimizer.type to adamw"
            )


class BudgetSpec(Settings):
    tokens: Annotated[int | None, Acts("draw", any_trainer=True)] = Field(
        default=None,
        ge=1,
        description=("generated tokens, the same for all arms, at which a cell ends; none = train.steps decides"),
    )
    teacher_tokens: Annotated[int | None, YOUNGER] = Field(
        default=None, ge=1, description="most completion tokens scored by the teacher; none = no limit"
    )
    trained_tokens: Annotated[int | None, Acts("draw", "train", any_trainer=True), YOUNGER] = Field(
        default=None,
        ge=1,
        description="completion tokens trained on, counted in each epoch, at which a cell ends; none = no limit",
    )
    flops: Annotated[float | None, Acts("draw", "train"), YOUNGER] = Field(
        default=None,
        gt=0,
        description="floating-point operations of sampling and training, estimated from tokens and parameters, at "
        "which a cell ends; none = no limit",
    )

    @property
    def limits(self) -> dict[str, tuple[str, float]]:
        """Maps a column of steps.jsonl to the name and value of the limit on it, for each limit that is set."""
        limits = {
            "generated_tokens": ("token budget", self.tokens),
            "teacher_tokens": ("budget of teacher tokens", self.teacher_tokens),
            "trained_tokens": ("budget of trained tokens", self.trained_tokens),
            "flops": ("FLOP budget", self.flops),
        }
        return {column: (name, limit) for column, (name, limit) in limits.items() if limit is not None}

    def most_used(self, spent: Mapping[str, float | None]) -> tuple[float, str]:
        """Return the used share of the limit that is closest to being reached, and the limit's name.

        Returns (0, "") if no limit is set. spent: maps columns of steps.jsonl to the amounts spent.
        """
        used = [((spent.get(column) or 0) / limit, name) for column, (name, limit) in self.limits.items()]
        return max(used, default=(0.0, ""))
