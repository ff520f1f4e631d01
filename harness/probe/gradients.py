"""Gradients with respect to the policy's weights, of several objectives from one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.probe.token_weights import TokenWeights
from harness.spec.run_spec import RunSpec
from harness.training.sequences import Sequences, score_completions

_ROUNDING = 1e-5
"""Relative: a few dozen roundings of float32, far below the noise of any estimate."""


def gradients(
    model: PreTrainedModel,
    sequences: Sequences,
    rows: Tensor,
    weights: Sequence[TokenWeights],
    spec: RunSpec,
    pad_token_id: int,
) -> Tensor:
    """[O, D] float32 on the CPU: for each of O objectives the gradient over the D trained weights.

    rows: int64 indices of the estimate's completions in the pool; weights: of all the pool's tokens, by objective.
    Objectives that differ by a factor in this estimate (leave_one_out and group_mean do) are differentiated once.
    """
    multiples = _multiples([torch.cat([of[rows].flatten() for of in weight]) for weight in weights])
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    total = torch.zeros(len(weights), sum(weight.numel() for weight in trained))
    entropy_grad = any(bool(weight.of_entropy[rows].any()) for weight in weights)
    for micro in sequences.micro_batches(rows, spec.train.micro_batch_tokens):
        logps, entropy = score_completions(
            model,
            sequences,
            micro,
            spec.rollout.temperature,
            pad_token_id,
            spec.train.logits_chunk_tokens,
            entropy_grad,
        )
        outputs = (logps, entropy) if entropy_grad else (logps,)
        for index in {first for first, _ in multiples}:
            of_outputs = [of[micro, : logps.shape[1]].to(logps.device) for of in weights[index]]
            if any(bool(of_output.any()) for of_output in of_outputs):
                found = torch.autograd.grad(outputs, trained, of_outputs[: len(outputs)], retain_graph=True)
                total[index] += torch.cat([gradient.reshape(-1) for gradient in found]).cpu()
    for index, (first, factor) in enumerate(multiples):
        total[index] = total[first] * factor
    return total


def _multiples(vectors: Sequence[Tensor]) -> list[tuple[int, float]]:
    """For each vector the first one that it is a multiple of, to within rounding, and the factor."""
    found: list[tuple[int, float]] = []
    for index, vector in enumerate(vectors):
        for first in dict.fromkeys(first for first, _ in found):
            largest = vectors[first].abs().argmax()
            factor = float(vector[largest] / vectors[first][largest])
            if factor and torch.allclose(vector, factor * vectors[first], rtol=_ROUNDING, atol=0):
                found.append((first, factor))
                break
        else:
            found.append((index, 1.0))
    return found
