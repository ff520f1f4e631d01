"""How a rollout batch is split into optimiser steps."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from harness.rollouts.keys import permutation, random_key
from harness.spec.run_spec import RunSpec


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
