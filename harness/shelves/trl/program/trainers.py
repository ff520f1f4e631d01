"""TRL's trainers, with what a cell prescribes: the tokens of its prompts, its pairs, and bench's learning rates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import DataCollator, TrainerState, TrainingArguments
from trl import DPOTrainer, GRPOTrainer, KTOTrainer, RLOOTrainer

from harness.config.train import TrainSpec
from harness.random_keys import random_key
from harness.training.optimizer import schedule

if TYPE_CHECKING:
    from trl.generation.vllm_generation import VLLMGeneration
    from vllm import RequestOutput, SamplingParams


class _AsPrescribed:
    """A mixin in front of a TRL trainer. `train_spec` is set before an instance is made."""

    train_spec: TrainSpec
    optimizer: Optimizer
    lr_scheduler: LambdaLR | None

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """Return bench's learning rates, by step: transformers' warm-up would begin with a step at rate 0."""
        if self.lr_scheduler is None:
            train = self.train_spec
            updates = train.updates_per_rollout * train.epochs
            rates = LambdaLR(optimizer or self.optimizer, lambda taken: schedule(1 + taken // updates, train))
            self.lr_scheduler, self._created_lr_scheduler = rates, True
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return all parameters, as in bench: transformers would exclude biases and norms from weight decay."""
        return [name for name, _ in model.named_parameters()]


class _OnPrompts(_AsPrescribed):
    """The `prompt` of a row holds the token ids that the evaluation encodes it to."""

    args: TrainingArguments
    accelerator: Accelerator
    state: TrainerState
    use_vllm: bool
    vllm_generation: VLLMGeneration

    def __init__(self, **given: object) -> None:
        super().__init__(**given)
        if self.use_vllm:
            llm = self.vllm_generation.llm
            llm.generate = partial(self._generate_seeded, llm.generate)

    def _generate_seeded(
        self,
        generate: Callable[..., list[RequestOutput]],
        prompts: list[object],
        sampling_params: SamplingParams,
        **given: object,
    ) -> list[RequestOutput]:
        """Have vLLM sample each completion with a seed made of the cell's seed, the optimiser steps done and its row.

        TRL seeds vLLM with the number of the process alone. All seeds of a cell would sample alike, and so would the
        first steps after each start. One `seed` in `generation_kwargs` would make the completions of a prompt equal,
        because TRL requests each of them separately.
        """
        engine = self.accelerator.process_index // self.vllm_generation.tensor_parallel_size
        each = [copy.deepcopy(sampling_params) for _ in prompts]
        for row, params in enumerate(each, start=engine * len(prompts)):
            key = random_key(self.args.seed, "rollout", self.state.global_step, row)
            params.seed = key & (2**63 - 1)  # vLLM takes -1 for no seed
        return generate(prompts, sampling_params=each, **given)

    def _tokenize_prompts(self, prompts: list[list[int]]) -> tuple[list[list[int]], None, dict[str, object]]:
        return prompts, None, {}


class _OnPairs(_AsPrescribed):
    """Rows are token ids already, and a batch is everything that a step trains on."""

    batches: list[list[int]]
    """The indices of each step's rows."""
    train_dataset: Dataset
    data_collator: DataCollator

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        return dataset

    def get_train_dataloader(self) -> DataLoader[object]:
        return DataLoader(self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator)


class Grpo(_OnPrompts, GRPOTrainer):  # type: ignore[misc]  # TRL is not checked
    """GRPOTrainer."""


class Rloo(_OnPrompts, RLOOTrainer):  # type: ignore[misc]
    """RLOOTrainer."""


class Dpo(_OnPairs, DPOTrainer):  # type: ignore[misc]
    """DPOTrainer."""


class Kto(_OnPairs, KTOTrainer):  # type: ignore[misc]
    """KTOTrainer."""
