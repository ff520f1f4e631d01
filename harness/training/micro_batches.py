"""Micro-batches: the rows that pass through the model together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
