"""The weight that an objective puts on each token of a stored step: -d loss / d log-prob, by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import Loss, Objective, TokenBatch, advantages, policy_loss, select_tokens
from algorithms.diagnostics import treatment
from harness.config.run_spec import RunSpec
from harness.random_keys import random_key
from harness.shelves.replay.stored import StoredStep
from harness.training.batch import Batch, filter_rows, optimizer_step_of_row, peers_of
from harness.training.optimizer import mini_batches


@dataclass(frozen=True)
class StoredTokenWeights:
    """An objective's treatment of a step's N completions of at most T tokens in each of E epochs.

    Tensors: [E, N, T].
    """

    weight: Tensor
    """-d loss / d log pi: above 0 the step makes the token likelier. 0 for masked tokens and in padding."""
    clipped: Tensor
    """Bool: a bound of the rule acts on the token."""
    masked: Tensor
    """Bool: excluded from the loss, by a filter of completions, a mask or a selection of tokens."""
    guessed: Tensor
    """Bool: has a weight, but its ratio is taken as 1, because its log-prob at that optimiser step is not recorded."""
    losses: list[Loss]
    """One loss for each optimiser step, in order."""


def replay_step(stored: StoredStep, objective: Objective, spec: RunSpec) -> StoredTokenWeights:
    """Run the objective over a stored step, split into optimiser steps as the cell's spec says.

    A completion's ratio in an epoch is the one that it had when the cell itself trained on it. It is exactly 1 at the
    first optimiser step. If nothing is recorded, it is taken as 1.
    """
    rollout = filter_rows(objective, stored.rollout)
    kept = rollout.places
    mask = stored.rollout.sequences.mask.expand_as(stored.log_ratios)
    weight, clipped = torch.zeros_like(stored.log_ratios), torch.zeros_like(mask)
    # Completions that a filter drops stay masked: only kept rows are written below.
    masked, guessed = mask.clone(), torch.zeros_like(mask)
    losses: list[Loss] = []
    for epoch in range(len(mask)):
        batches = mini_batches(rollout.groups, spec, stored.step, epoch)
        advantage = _advantages(objective, rollout, batches, spec, stored.step)
        for rows in batches:
            at, loss_mask, old_logp = kept[rows], rollout.loss_mask[rows], stored.old_logps[kept[rows]]
            logp = (old_logp + stored.log_ratios[epoch, at]).requires_grad_()
            loss = policy_loss(
                objective,
                TokenBatch(
                    logp=logp,
                    old_logp=old_logp,
                    mask=loss_mask,
                    advantages=advantage[rows],
                    sampler_logp=rollout.sampler_logps[rows],
                    selected=select_tokens(
                        objective,
                        logp,
                        old_logp,
                        advantage[rows],
                        loss_mask,
                        key=random_key(spec.seed, "select", stored.step, "tokens", sample=len(losses)),
                    ),
                    groups=rollout.groups[rows],
                    max_completion_tokens=rollout.max_completion_tokens,
                ),
            )
            (gradient,) = torch.autograd.grad(loss.value, logp)
            treated = treatment(loss.trace)
            # `0 - gradient` and not `-gradient`, which would turn 0 into -0.
            weight[epoch, at] = torch.where(loss_mask, 0 - gradient, 0)
            clipped[epoch, at] = treated.clipped
            masked[epoch, at] = rollout.sequences.mask[rows] & (treated.masked | ~loss_mask)
            # At the first optimiser step the ratio is exactly 1, so nothing is guessed.
            if losses:
                guessed[epoch, at] = loss_mask & (gradient != 0) & ~stored.scored[epoch, at, None]
            losses.append(loss)
    return StoredTokenWeights(weight, clipped, masked, guessed, losses)


def _advantages(objective: Objective, rollout: Batch, batches: Sequence[Tensor], spec: RunSpec, step: int) -> Tensor:
    """Compute the advantages [N, T] of a pass that is split into these optimiser steps (row indices)."""
    return advantages(
        objective,
        rollout.rewards,
        rollout.groups,
        rollout.sequences.mask,
        peers=peers_of(rollout.groups, spec.seed, step) if objective.baseline == "random_peer" else None,
        mini_batches=optimizer_step_of_row(len(rollout), batches),
    )
