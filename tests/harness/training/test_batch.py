from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms import preset
from harness.training.batch import Batch, filter_rows, zero_std_rows
from tests.harness.training import rollouts

REWARDS = [1.0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 0]
"""Groups of four; the second and the third have no spread."""
TRUNCATED = torch.tensor([False, True, False, False] + [False] * 8 + [False, True, False, False])


def filtered(overlong: str = "penalise", zero_std: str = "keep", rewards: list[float] | None = None) -> Batch:
    batch = dataclasses.replace(rollouts.rollout(rollouts.model(), rewards or REWARDS), truncated=TRUNCATED)
    return filter_rows(preset("grpo", **{"overlong.type": overlong, "zero_std": zero_std}), batch)


def rows_in_loss(result: Batch) -> list[int]:
    return result.loss_mask.any(1).nonzero()[:, 0].tolist()


def test_nothing_is_taken_out_by_default() -> None:
    result = filtered()
    assert result.places.tolist() == list(range(16))
    assert torch.equal(result.loss_mask, result.sequences.mask)
    assert result.rewards.tolist() == REWARDS


def test_mask_after_keeps_the_reward() -> None:
    result = filtered("mask_after")
    assert rows_in_loss(result) == [row for row in range(16) if row not in (1, 13)]
    assert result.rewards.tolist() == REWARDS
    assert len(result) == 16


def test_mask_before_hides_the_reward_from_baselines() -> None:
    result = filtered("mask_before")
    assert rows_in_loss(result) == [row for row in range(16) if row not in (1, 13)]
    assert result.rewards.isnan().nonzero()[:, 0].tolist() == [1, 13]
    assert len(result.groups) == 16


def test_drop_removes_rows_everywhere() -> None:
    result = filtered("drop")
    assert result.places.tolist() == [row for row in range(16) if row not in (1, 13)]
    assert result.rewards.tolist() == [reward for row, reward in enumerate(REWARDS) if row not in (1, 13)]
    assert len(result.sequences.prompts) == len(result.sequences.lengths) == len(result.sampler_logps) == 14
    whole = rollouts.rollout(rollouts.model(), REWARDS)
    assert torch.equal(result.sequences.completions[1], whole.sequences.completions[2])
    assert list(result.sequences.prompts[13]) == list(whole.sequences.prompts[15])
    assert torch.equal(result.sampler_logps[12], whole.sampler_logps[14])


def test_zero_std_mask_keeps_rows_in_the_batch() -> None:
    result = filtered(zero_std="mask")
    assert rows_in_loss(result) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert len(result.groups) == 16
    assert result.rewards.tolist() == REWARDS


@pytest.mark.parametrize("zero_std", ["drop", "refill"])
def test_zero_std_drop_removes_groups(zero_std: str) -> None:
    result = filtered(zero_std=zero_std)
    assert sorted(set(result.groups.tolist())) == [0, 3]
    assert result.places.tolist() == [0, 1, 2, 3, 12, 13, 14, 15]


def test_spread_is_that_of_the_rows_that_remain() -> None:
    """The only right answer of the last group was cut off: what remains is equal."""
    result = filtered("drop", zero_std="drop")
    assert sorted(set(result.groups.tolist())) == [0]
    masked = filtered("mask_before", zero_std="mask")
    assert rows_in_loss(masked) == [0, 2, 3]


def test_all_rows_can_go() -> None:
    result = filtered(zero_std="drop", rewards=[0.0] * 16)
    assert len(result.groups) == len(result.sequences.prompts) == 0
    assert result.places.tolist() == []


def test_unscored_rows_have_no_say() -> None:
    nan = float("nan")
    rewards = torch.tensor([1.0, nan, 1.0, nan, nan, 0.0, 1.0, nan, 2.0])
    groups = torch.tensor([7, 7, 7, 7, 3, 5, 5, 5, 9])
    assert zero_std_rows(rewards, groups).tolist() == [True] * 4 + [True] + [False] * 3 + [True]
    assert zero_std_rows(rewards[:0], groups[:0]).tolist() == []


def test_rows_keep_what_belongs_to_them() -> None:
    rollout = dataclasses.replace(
        rollouts.rollout(rollouts.model()), token_rewards=torch.arange(16.0)[:, None].expand(16, rollouts.WIDTH)
    )
    kept = rollout.rows(torch.tensor([0, 5, 10, 15]))
    assert kept.token_rewards is not None
    assert kept.token_rewards[:, 0].tolist() == [0, 5, 10, 15]
    assert torch.equal(kept.correct, rollout.correct[[0, 5, 10, 15]])
    assert torch.equal(kept.sequences.lengths, rollout.sequences.lengths[[0, 5, 10, 15]])
