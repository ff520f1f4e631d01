"""Against derivatives written out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from algorithms import Objective, preset, with_overrides
from harness.shelves.probe.gradients import TokenWeights, token_weights
from harness.training.batch import Batch
from harness.training.sequences import Scores
from tests.harness.training.rollouts import GROUPS, REWARDS, SAMPLES, WIDTH, model, rollout

BATCH = 2 * SAMPLES
NONE_CUT = torch.zeros(GROUPS * SAMPLES, dtype=torch.bool)


@pytest.fixture(scope="module")
def pool() -> Batch:
    """Two estimates of two groups each."""
    made = rollout(model())
    entropy = torch.rand(made.loss_mask.shape) + 0.5
    return replace(made, scores=Scores(made.sampler_logps, entropy, torch.zeros(entropy.shape)))


def weights(objective: Objective, pool: Batch, truncated: Tensor = NONE_CUT) -> TokenWeights:
    return token_weights(objective, replace(pool, truncated=truncated), BATCH, seed=0)


def reinforce(**overrides: object) -> Objective:
    return preset("reinforce", Objective, **overrides)


def spread(of_rows: Tensor, pool: Batch) -> Tensor:
    return of_rows[:, None] * pool.loss_mask


def test_leave_one_out_is_minus_the_advantage_over_the_batch(pool: Batch) -> None:
    rewards = torch.tensor(REWARDS).view(GROUPS, SAMPLES)
    others = (rewards.sum(1, keepdim=True) - rewards) / (SAMPLES - 1)
    found = weights(reinforce(baseline="leave_one_out"), pool)
    assert torch.allclose(found.of_logps, spread(-(rewards - others).flatten() / BATCH, pool), atol=1e-6)
    assert not found.of_entropy.any()


def test_the_batch_is_that_of_the_estimate(pool: Batch) -> None:
    """Its mean reward is the baseline, its tokens are the denominator."""
    rewards = torch.tensor(REWARDS).view(2, BATCH)
    found = weights(reinforce(baseline="batch_mean", aggregation="token_mean"), pool).of_logps
    tokens = pool.loss_mask.view(2, BATCH, -1).sum((1, 2))
    expected = -(rewards - rewards.mean(1, keepdim=True)) / tokens[:, None]
    assert torch.allclose(found, spread(expected.flatten(), pool), atol=1e-6)


@pytest.mark.parametrize("name", ["dr_grpo", "sapo", "gspo"])
def test_ratios_are_one(name: Literal["dr_grpo", "sapo", "gspo"], pool: Batch) -> None:
    """At the sampling policy a ratio-based rule has the plain policy gradient."""
    objective = preset(name, Objective)
    plain = with_overrides(objective, {"rule.type": "policy_gradient", "ratio": "none"})
    assert torch.allclose(weights(objective, pool).of_logps, weights(plain, pool).of_logps, atol=1e-6)


def test_dropped_rows_weigh_nothing_and_leave_the_denominator(pool: Batch) -> None:
    dropping = reinforce(baseline="none", **{"overlong.type": "drop"})
    cut = NONE_CUT.clone()
    cut[[0, 9]] = True
    found = weights(dropping, pool, cut).of_logps
    assert torch.allclose(found, spread(-torch.tensor(REWARDS) * ~cut / (BATCH - 1), pool), atol=1e-6)
    cut[:BATCH] = True  # nothing of an estimate is left
    found = weights(dropping, pool, cut).of_logps
    assert not found[:BATCH].any() and found[BATCH:].any()


def test_an_entropy_bonus_weighs_the_entropy(pool: Batch) -> None:
    found = weights(reinforce(**{"entropy.bonus": 0.3}), pool)
    tokens = pool.loss_mask.view(2, -1).sum(1).repeat_interleave(BATCH)
    assert torch.allclose(found.of_entropy, -0.3 * pool.loss_mask / tokens[:, None], atol=1e-6)


def test_a_random_peer_is_the_same_each_time(pool: Batch) -> None:
    once, again = (weights(preset("brpo", Objective), pool).of_logps for _ in range(2))
    assert once.any()
    assert torch.equal(once, again)


def test_padding_weighs_nothing(pool: Batch) -> None:
    assert pool.loss_mask.shape == (GROUPS * SAMPLES, WIDTH)
    for name in ("reinforce", "grpo", "lite_ppo", "magistral"):
        assert not weights(preset(name, Objective), pool).of_logps[~pool.loss_mask].any(), name
