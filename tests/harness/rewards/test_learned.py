from __future__ import annotations

import math

from harness.rewards import reward_groups
from tests.harness.rewards.attempts import attempt, context, same


def test_the_score_is_the_reward_and_the_truth_is_logged() -> None:
    group = [attempt("42", reward_model_score=-1.5), attempt("41", reward_model_score=0.25)]
    rewards = reward_groups([group], context({"correct": 0.0, "reward_model": 2.0}))
    assert rewards.total == [-3, 0.5]
    assert rewards.parts == {"correct": [1, 0], "reward_model": [-1.5, 0.25]}


def test_without_a_reward_model_there_is_no_reward() -> None:
    rewards = reward_groups([[attempt("42")]], context({"correct": 0.0, "reward_model": 1.0}))
    assert same(rewards.total, [math.nan])
