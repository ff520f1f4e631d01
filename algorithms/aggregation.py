"""Aggregation: how token losses become one number, with the denominators of the whole optimiser step."""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.batch import TokenBatch
from algorithms.objective import Aggregation


def aggregate(losses: Tensor, aggregation: Aggregation, batch: TokenBatch) -> Tensor:
    """This batch's share [] in the step's loss, from the losses of its tokens [B, T].

    A fully masked completion adds nothing to the sum; it counts in the denominators over completions and not in those
    over tokens (as in TRL and in verl's engines).
    """
    mask = batch.mask.bool()
    lengths = mask.sum(1, keepdim=True)
    step_sequences = losses.shape[0] if batch.step_sequences is None else batch.step_sequences
    match aggregation:
        case "token_mean":
            step_tokens = lengths.sum().clamp(min=1) if batch.step_tokens is None else batch.step_tokens
            weighted = losses / step_tokens
        case "seq_mean_token_mean":
            weighted = losses / (step_sequences * lengths.clamp(min=1))
        case "seq_mean_token_sum":
            weighted = losses / step_sequences
        case "constant_length":
            if batch.max_completion_tokens is None:
                raise ValueError(
                    "aggregation=constant_length divides by the completion limit, but the batch has none: set "
                    "TokenBatch.max_completion_tokens to rollout.max_completion_tokens"
                )
            weighted = losses / (step_sequences * batch.max_completion_tokens)
    return torch.where(mask, weighted, 0).sum()
