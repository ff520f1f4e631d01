"""Which prompts a step trains on: drawn by (seed, step) alone, so that arms with one seed see the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from evals.tasks.base import Problem
from harness.rollouts.keys import permutation, random_key


def prompts_of_step(problems: Sequence[Problem], seed: int, step: int, count: int) -> list[Problem]:
    """The `count` problems of a step (from 1): every problem once an epoch, in a new order each epoch."""
    first = (step - 1) * count
    return [
        problems[_order(len(problems), seed, position // len(problems))[position % len(problems)]]
        for position in range(first, first + count)
    ]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    return permutation(count, random_key(seed, "data", step=epoch))
