"""Micro-batches: the rows that pass through the model together.

How a rollout batch is split into optimiser steps.

How many tokens pass through a model at once, and what happens where the device's memory does not hold them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from algorithms import Objective
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.random_keys import permutation, random_key


def micro_batches(
    rows: Tensor, prompt_tokens: Sequence[int], completion_tokens: Sequence[int], budget_tokens: int
) -> list[Tensor]:
    """Split rows (int64 indices) so that no padded batch exceeds the budget, a single row excepted.

    The token counts are those of all N rows, which the indices point into. A batch is as wide as its longest prompt and
    its longest completion together. Rows are sorted by length first: padding is wasted work.
    """
    batches: list[list[int]] = []
    width = 0
    for row in sorted(rows.tolist(), key=lambda row: (completion_tokens[row], prompt_tokens[row])):
        widest = max(width, prompt_tokens[row])
        if batches and (len(batches[-1]) + 1) * (widest + completion_tokens[row]) <= budget_tokens:
            batches[-1].append(row)
            width = widest
        else:
            batches.append([row])
            width = prompt_tokens[row]
    return [torch.tensor(batch) for batch in batches]


def grouped_micro_batches(
    rows: Tensor,
    group_of_row: Sequence[int],
    prompt_tokens: Sequence[int],
    completion_tokens: Sequence[int],
    budget_tokens: int,
) -> list[Tensor]:
    """Split rows (int64 indices) so that those of one prompt stay together, which is then computed once, without
    padding.

    group_of_row [N] numbers prompts and prompt_tokens [P] is their tokens; completion_tokens [N]. A batch's distinct
    prompts and its completions are within the budget, a single row excepted; the batches are of about equal size. Only
    a group that exceeds the budget alone is split.
    """
    groups: dict[int, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(group_of_row[row], []).append(row)
    sizes = {
        group: prompt_tokens[group] + sum(completion_tokens[row] for row in members)
        for group, members in groups.items()
    }
    total = sum(sizes.values())
    wanted = total / max(1, math.ceil(total / budget_tokens))
    batches: list[list[int]] = []
    held = math.inf
    for group, members in groups.items():
        # A group goes where more than half of it still fits what is wanted.
        if held + sizes[group] <= budget_tokens and held + sizes[group] / 2 <= wanted:
            batches[-1] += members
            held += sizes[group]
            continue
        held = math.inf
        for row in members:
            if held + completion_tokens[row] > budget_tokens:
                batches.append([])
                held = prompt_tokens[group]
            batches[-1].append(row)
            held += completion_tokens[row]
    return [torch.tensor(batch) for batch in batches]


@dataclass(frozen=True)
class Part:
    """Takes a micro-batch's rows out of tensors [N, T] and brings them to the model's device."""

    rows: Tensor
    longest: int
    device: torch.device

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self.rows, : self.longest].to(self.device)

    def if_any(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.of(tensor)


def mini_batches(groups: Tensor, spec: RunSpec, step: int, epoch: int) -> list[Tensor]:
    """Rows (int64 indices) of each optimiser step of one pass over a rollout batch; groups [N] int64.

    Each holds whole groups, as equally many as possible, drawn in a new order each pass where there is more than one
    step. There are fewer than `train.updates_per_rollout` only where there are fewer groups (some were dropped).
    """
    names = sorted(set(groups.tolist()))
    if spec.optimizer_steps_per_rollout > 1:
        key = random_key(spec.seed, "shuffle", step=step, example=epoch)
        names = [names[index] for index in permutation(len(names), key)]
    count = min(spec.train.updates_per_rollout, len(names))
    edges = [len(names) * index // count for index in range(count + 1)] if count else []
    return [
        torch.isin(groups, torch.tensor(names[start:end])).nonzero()[:, 0] for start, end in itertools.pairwise(edges)
    ]


T = TypeVar("T")


class TokenBudget:
    """`train.micro_batch_tokens`, halved whenever a pass runs out of memory, for the rest of the cell."""

    def __init__(self, tokens: int, divisible: bool = True) -> None:
        """divisible: whether the results stay the same, up to rounding, however rows are split."""
        self.tokens = tokens
        self._divisible = divisible
        self._notes: list[str] = []

    @classmethod
    def of(cls, spec: RunSpec) -> TokenBudget:
        objective = spec.objective
        micro = isinstance(objective, Objective) and objective.aggregation == "micro_token_mean"
        return cls(spec.train.micro_batch_tokens, divisible=not micro)

    def run(self, split: Callable[[int], list[Tensor]], work: Callable[[list[Tensor]], T]) -> T:
        """work(split(tokens)); from its beginning again, with half the tokens, as often as memory runs out.

        `split` gives the micro-batches for a budget, and `work` must not depend on what an earlier try of it left
        behind. Raises RefusedError where smaller micro-batches cannot be had, or would change the objective.
        """
        while True:
            micro_batches = split(self.tokens)
            try:
                return work(micro_batches)
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0] if str(error) else "out of memory"
            # Out of the handler, whose traceback keeps the tensors of the failed pass alive.
            self._halve(split, len(micro_batches), reason)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def notes(self) -> list[str]:
        """A line for each halving since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def state_dict(self) -> dict[str, int]:
        return {"micro_batch_tokens": self.tokens}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.tokens = state["micro_batch_tokens"]

    def _halve(self, split: Callable[[int], list[Tensor]], count: int, reason: str) -> None:
        """Take the next lower half of the budget that gives more micro-batches."""
        if not self._divisible:
            raise RefusedError(
                f"out of memory with train.micro_batch_tokens={self.tokens} ({reason}). Under "
                "objective.aggregation=micro_token_mean the budget is part of the objective and is not lowered by "
                "itself. Set a lower train.micro_batch_tokens, for all arms alike."
            )
        tokens = self.tokens // 2
        while tokens > 0 and len(split(tokens)) <= count:
            tokens //= 2
        if tokens == 0:
            raise RefusedError(
                f"out of memory in a pass that cannot be split further ({reason}). Use shorter completions "
                "(rollout.max_completion_tokens), train.activation_checkpointing, a smaller train.logits_chunk_tokens, "
                "or a device with more memory."
            )
        self._notes.append(
            f"out of memory with {self.tokens} tokens a pass ({reason}): going on with {tokens} of them, which changes "
            "results by no more than rounding"
        )
        self.tokens = tokens
