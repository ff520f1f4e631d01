"""Aggregation: how token losses become one number, with the denominators of the whole optimiser step."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.batch import TokenBatch
from algorithms.objective import Aggregation


def aggregate(losses: Tensor, aggregation: Aggregation, batch: TokenBatch) -> Tensor:
    """This batch's share [] in the step's loss, from the losses of its tokens [B, T].

    Shares add up to the loss of the step, however its rows are split into micro-batches; under micro_token_mean that
    loss itself depends on the split. A fully masked completion, group or micro-batch adds nothing to the sum; it counts
    in the denominators over its kind and not in those over tokens (as in TRL and in verl's engines).

    Raises ValueError if the batch lacks what the aggregation divides by.
    """
    mask = batch.mask.bool()
    return torch.where(mask, losses / _divisors(mask, aggregation, batch), 0).sum()


def _divisors(mask: Tensor, aggregation: Aggregation, batch: TokenBatch) -> Tensor | int:
    """[B, 1] for the tokens of each row, or one number for all. `mask` is the batch's, as bool."""
    lengths = mask.sum(1, keepdim=True)
    match aggregation:
        case "token_mean":
            return _step_tokens(lengths, batch)
        case "micro_token_mean":
            micro_batches = 1 if batch.is_whole_step else _needed("step_micro_batches", batch.step_micro_batches)
            return micro_batches * lengths.sum().clamp(min=1)
        case "group_token_mean":
            return _group_divisors(lengths, batch)
        case "seq_mean_token_mean":
            return _step_sequences(batch) * lengths.clamp(min=1)
        case "seq_mean_token_sum":
            return _step_sequences(batch)
        case "constant_length":
            if batch.max_completion_tokens is None:
                raise ValueError(
                    "aggregation=constant_length divides by the completion limit, but the batch has none: set "
                    "TokenBatch.max_completion_tokens to rollout.max_completion_tokens"
                )
            return _step_sequences(batch) * batch.max_completion_tokens


def _step_tokens(lengths: Tensor, batch: TokenBatch) -> Tensor | int:
    return lengths.sum().clamp(min=1) if batch.is_whole_step else _needed("step_tokens", batch.step_tokens)


def _step_sequences(batch: TokenBatch) -> int:
    # 1 for a step of no rows: there is nothing to divide.
    return max(1, len(batch.mask)) if batch.is_whole_step else _needed("step_sequences", batch.step_sequences)


def _group_divisors(lengths: Tensor, batch: TokenBatch) -> Tensor:
    if not batch.is_whole_step:
        if batch.group_tokens is None:
            raise ValueError(_lacks("group_tokens"))
        return _needed("step_groups", batch.step_groups) * batch.group_tokens[:, None].clamp(min=1)
    if batch.groups is None:
        raise ValueError(
            "aggregation=group_token_mean divides by the tokens of each prompt's group, but the batch does not say "
            "which rows belong together: set TokenBatch.groups"
        )
    names, group = torch.unique(batch.groups, return_inverse=True)
    group_tokens = torch.zeros_like(lengths).index_add(0, group, lengths)[group]
    return len(names) * group_tokens.clamp(min=1)


def _needed(name: str, count: int | None) -> int:
    if count is None:
        raise ValueError(_lacks(name))
    return count


def _lacks(name: str) -> str:
    return (
        f"the batch is a part of an optimiser step (it has step_* numbers) and its loss is divided by {name} of the "
        f"whole step: set TokenBatch.{name}"
    )
