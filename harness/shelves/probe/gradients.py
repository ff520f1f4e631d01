"""Gradients with respect to the policy's weights, for several objectives from one forward pass.

An objective enters only by the derivatives of its loss with respect to every token's log-prob and entropy. Its gradient
is sum over tokens of weight x gradient of the token's log-prob (and entropy), so one forward pass serves any number of
objectives. The derivatives come from the `advantages` and `policy_loss` that training uses.

Shapes: N completions in a pool, B in an estimate, T tokens of the longest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms import Objective, TokenBatch, advantages, policy_loss
from harness.config.run_spec import RunSpec
from harness.training.batch import Batch, filter_rows, peers_of
from harness.training.sequences import Scores, Sequences, score_completions

_ROUNDING = 1e-5
"""A relative tolerance: a few dozen roundings of float32, far below the noise of any estimate."""


def gradients(
    model: PreTrainedModel,
    sequences: Sequences,
    rows: Tensor,
    weights: Sequence[TokenWeights],
    spec: RunSpec,
    pad_token_id: int,
) -> Tensor:
    """Compute the gradient of each of O objectives over the D trained weights, [O, D] float32 on the CPU.

    rows: int64 indices of the estimate's completions in the pool. weights: of all tokens of the pool, by objective.
    Objectives that differ by a factor in this estimate (leave_one_out and group_mean do) are differentiated once.
    """
    multiples = _multiples([torch.cat([of[rows].flatten() for of in weight]) for weight in weights])
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    # float32 on the CPU: the sums over micro-batches would take O x D numbers of GPU memory.
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
        # Without an entropy term, the entropy has no graph to differentiate.
        outputs = (logps, entropy) if entropy_grad else (logps,)
        for index in {first for first, _ in multiples}:
            of_outputs = [of[micro, : logps.shape[1]].to(logps.device) for of in weights[index]]
            if any(bool(of_output.any()) for of_output in of_outputs):
                # The graph is kept for the next objective. It is freed with `outputs` at the next micro-batch.
                found = torch.autograd.grad(outputs, trained, of_outputs[: len(outputs)], retain_graph=True)
                total[index] += torch.cat([gradient.reshape(-1) for gradient in found]).cpu()
    for index, (first, factor) in enumerate(multiples):
        total[index] = total[first] * factor
    return total


def _multiples(vectors: Sequence[Tensor]) -> list[tuple[int, float]]:
    """Return, for each vector, the first one that it is a multiple of, to within rounding, and the factor."""
    found: list[tuple[int, float]] = []
    for index, vector in enumerate(vectors):
        for first in dict.fromkeys(first for first, _ in found):
            # The largest entry gives the factor: rounding matters least there, and the divisor is 0 only if all are.
            largest = vectors[first].abs().argmax()
            factor = float(vector[largest] / vectors[first][largest])
            if factor and torch.allclose(vector, factor * vectors[first], rtol=_ROUNDING, atol=0):
                found.append((first, factor))
                break
        else:
            found.append((index, 1.0))
    return found


class TokenWeights(NamedTuple):
    """Derivatives of the loss, [N, T] each."""

    of_logps: Tensor
    of_entropy: Tensor


def token_weights(objective: Objective, pool: Batch, batch_size: int, seed: int) -> TokenWeights:
    """Compute the token weights of every completion of a pool [N, T], in the estimate that it belongs to.

    The pool has rewards and scores. Each batch_size rows, of whole groups, are one estimate: one optimiser step at the
    policy that sampled them, so all ratios are 1.
    """
    parts = [
        _of_estimate(objective, pool.rows(torch.arange(start, min(start + batch_size, len(pool)))), seed)
        for start in range(0, len(pool), batch_size)
    ]
    return TokenWeights(*map(torch.cat, zip(*parts, strict=True)))


def _of_estimate(objective: Objective, batch: Batch, seed: int) -> TokenWeights:
    """Differentiate the loss of one estimate by its log-probs and entropies; 0 if all rows are filtered out."""
    # Leaves of the graph: filtering comes after them, so filtered rows get a derivative of 0.
    logps = batch.scores.logps.clone().requires_grad_()
    entropy = batch.scores.entropy.clone().requires_grad_()
    filtered = filter_rows(objective, replace(batch, scores=Scores(logps, entropy, batch.scores.values)))
    if len(filtered) == 0:
        return TokenWeights(torch.zeros_like(logps), torch.zeros_like(entropy))
    advantage = advantages(
        objective,
        filtered.rewards,
        filtered.groups,
        filtered.sequences.mask,
        token_rewards=filtered.token_rewards,
        peers=peers_of(filtered.groups, seed, step=0) if objective.baseline == "random_peer" else None,
    )
    tokens = TokenBatch(
        logp=filtered.scores.logps,
        # Equal to `logp` but constant, so each ratio is 1 and still has a gradient.
        old_logp=filtered.scores.logps.detach(),
        mask=filtered.loss_mask,
        advantages=advantage,
        sampler_logp=filtered.sampler_logps,
        entropy=filtered.scores.entropy,
        groups=filtered.groups,
        max_completion_tokens=filtered.max_completion_tokens,
    )
    loss = policy_loss(objective, tokens).value
    return TokenWeights(*torch.autograd.grad(loss, (logps, entropy), allow_unused=True, materialize_grads=True))
