"""What a reward part is given and what it gives back. These are also the terms of a part of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evals.grading import Verdict
from evals.tasks.base import Problem

if TYPE_CHECKING:
    from algorithms.objective import Credit, Overlong
    from evals.tasks.base import Task
    from harness.config.reward import RewardSpec


@dataclass(frozen=True)
class Attempt:
    """A completion to be rewarded, with the grader's verdict on it.

    sample: its number in the group of its prompt, from 0. n_tokens: with the end-of-sequence token.
    truncated: cut at the limit. mean_logp: mean log-prob of its tokens under the sampler, in nats.
    reward_model_score: in standard deviations of what the starting weights get; NaN where no reward model is in use.
    """

    problem: Problem
    sample: int
    text: str
    n_tokens: int
    truncated: bool
    verdict: Verdict
    mean_logp: float
    reward_model_score: float = math.nan


@dataclass(frozen=True)
class RewardContext:
    """What the attempts of one step have in common.

    step: counts rollout batches from 1. overlong, credit: those knobs of a policy-gradient objective; with pairs, where
    they do not exist, their defaults.
    """

    step: int
    seed: int
    max_completion_tokens: int
    options: RewardSpec
    overlong: Overlong
    credit: Credit
    task: Task


RewardPart = Callable[[Sequence[Attempt], RewardContext], list[float]]
"""(all attempts at one prompt, context) -> a number for each, in their order; NaN for one that cannot be scored."""
